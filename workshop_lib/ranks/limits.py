"""What ranks need, and what this host's limits allow: a limit that's too low is named before anything starts."""

import math
import os
import resource
import sys
from typing import NamedTuple

import psutil

from workshop_lib.machine import cgroups

from .rank_errors import RankError


class Limit(NamedTuple):
    """A limit, and what ranks need of it."""

    what: str
    needed: int
    allowed: float
    used: float
    remedy: str

    @property
    def is_too_low(self) -> bool:
        return self.used + self.needed > self.allowed

    @property
    def found(self) -> str:
        """What ranks need and what is allowed, as the end of a sentence about ranks."""
        used = f" and {self.used:,.0f} in use" if self.used else ""
        return f"they need about {self.needed:,} {self.what}; {self.allowed:,.0f} are allowed here{used}"

    def __str__(self) -> str:
        return f"{self.allowed:,.0f} {self.what}"


def of_ranks(n: int, threads_per_rank: int = 1, all_here: bool = True) -> list[Limit]:
    """Every limit that keeps `n` ranks from training on this host. all_here: whether all of them are here.

    What they need was measured with 2 and 8 ranks, training with DDP. The controller had 61 and 74 open files. All
    processes together had 69 and 159 threads; each rank had 15, and 7 more with four threads to compute with.
    """
    here = n if all_here else 0
    remedy = "Run `ulimit -n 1024` before you start this; if that's refused, open a new terminal."
    limits = [Limit("open files", 128 + 4 * n, _allowed(resource.RLIMIT_NOFILE), 0, remedy)]
    if sys.platform != "linux":  # macOS counts and limits these differently
        return limits
    threads = 40 + (13 + 2 * threads_per_rank) * here
    what = "processes and threads"
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.getuid() != 0 and soft != resource.RLIM_INFINITY:  # this limit isn't root's
        remedy = "End other programs of yours, raise the limit with `ulimit -u`, or ask the administrator."
        limits.append(Limit(what, threads, soft, _own_threads(), remedy))
    remedy = "Give this container or job more, as with `docker run --pids-limit` or systemd's `TasksMax=`."
    for folder in cgroups.folders("pids"):
        allowed, used = (cgroups.number(folder / name) for name in ("pids.max", "pids.current"))
        if math.isfinite(allowed) and math.isfinite(used):
            limits.append(Limit(what, threads, allowed, used, remedy))
    return limits


def _allowed(rlimit: int) -> float:
    """What a process may raise its limit to."""
    hard = resource.getrlimit(rlimit)[1]
    return math.inf if hard == resource.RLIM_INFINITY else hard


def _own_threads() -> int:
    """How many threads the processes of this user have, which is what Linux counts as processes."""
    count = 0
    for process in psutil.process_iter():
        try:
            if process.uids().real == os.getuid():
                count += process.num_threads()
        except psutil.Error:
            continue
    return count


def require(n: int, threads_per_rank: int = 1, all_here: bool = True) -> None:
    """Let this process and those that it starts open what `n` ranks need. Raises RankError if a limit is too low."""
    limits = of_ranks(n, threads_per_rank, all_here)
    for limit in limits:
        if limit.is_too_low:
            raise RankError(f"The ranks did not start: {limit.found}. {limit.remedy}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limits[0].needed), hard))
