"""What ranks need, and what this host's limits allow: a limit that's too low is named before anything starts."""

import math
import os
import resource
import sys
from typing import NamedTuple

import psutil

from workshop_lib.machine import cgroups

from .rank_errors import RankError

MB, GB = 1e6, 1e9


class Limit(NamedTuple):
    """A limit, and what ranks need of it. A limit on each process (`rlimit`) can be raised up to `allowed`."""

    what: str
    needed: float
    allowed: float
    used: float
    remedy: str
    unit: float = 1  # what one of these numbers counts in the texts
    rlimit: int | None = None

    @property
    def is_too_low(self) -> bool:
        return self.used + self.needed > self.allowed

    @property
    def found(self) -> str:
        """What ranks need and what is allowed, as the end of a sentence about ranks."""
        used = f" and {self._text(self.used)} in use" if self.used else ""
        allowed = f"{self._text(self.allowed)} are allowed here{used}"
        return f"they need about {self._text(self.needed)} {self.what}; {allowed}"

    def __str__(self) -> str:
        return f"{self._text(self.allowed)} {self.what}"

    def _text(self, value: float) -> str:
        return f"{value / self.unit:.1f}" if self.unit > 1 else f"{value:,.0f}"


def of_ranks(n: int, threads_per_rank: int = 1, all_here: bool = True) -> list[Limit]:
    """Every limit that keeps `n` ranks from training on this host. all_here: whether all of them are here.

    What they need was measured with 2 and 8 ranks, training with DDP. The controller had 61 and 74 open files. All
    processes together had 69 and 159 threads; each rank had 15, and 7 more with four threads to compute with. A rank
    had 1.9 GB of addresses and 0.6 GB of data.

    Two ranks also trained where no memory may be locked, no signals be pending and no message queues exist, where
    stacks have 256 KB or no limit, and where /dev/shm has 0.3 MB. So these limits aren't looked at.
    """
    here = n if all_here else 0
    limits = [
        _of_process(
            "open files",
            128 + 4 * n,
            resource.RLIMIT_NOFILE,
            "Run `ulimit -n 1024` before you start this; if that's refused, open a new terminal.",
        )
    ]
    if sys.platform != "linux":  # macOS counts and limits these differently
        return limits
    threads = 40 + (13 + 2 * threads_per_rank) * here
    what = "processes and threads"
    if os.getuid() != 0:  # this limit isn't root's
        remedy = "End other programs of yours, raise the limit with `ulimit -u`, or ask the administrator."
        limits.append(_of_process(what, threads, resource.RLIMIT_NPROC, remedy, used=_own_threads))
    remedy = "Give this container or job more, as with `docker run --pids-limit` or systemd's `TasksMax=`."
    for folder in cgroups.folders("pids"):
        allowed, used = (cgroups.number(folder / name) for name in ("pids.max", "pids.current"))
        if math.isfinite(allowed) and math.isfinite(used):
            limits.append(Limit(what, threads, allowed, used, remedy))
    remedy = "Raise the limit with `ulimit -{}` before you start this, or ask the administrator."
    for letter, what, needed, unit, rlimit in (
        ("v", "GB of addresses for each process", 2 * GB, GB, resource.RLIMIT_AS),
        ("d", "GB of data for each process", 0.6 * GB, GB, resource.RLIMIT_DATA),
        ("f", "MB in one file", 20 * MB, MB, resource.RLIMIT_FSIZE),
        ("t", "seconds of computing for each process", 60, 1, resource.RLIMIT_CPU),
    ):
        limits.append(_of_process(what, needed, rlimit, remedy.format(letter), unit=unit))
    return limits


def _of_process(what: str, needed: float, rlimit: int, remedy: str, used=lambda: 0, unit: float = 1) -> Limit:
    hard = resource.getrlimit(rlimit)[1]
    if hard == resource.RLIM_INFINITY:
        return Limit(what, needed, math.inf, 0, remedy, unit, rlimit)
    return Limit(what, needed, hard, used(), remedy, unit, rlimit)


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
    """Let this process, and those that it starts, use what `n` ranks need. Raises RankError if that is forbidden."""
    for limit in of_ranks(n, threads_per_rank, all_here):
        if limit.is_too_low:
            raise RankError(f"The ranks did not start: {limit.found}. {limit.remedy}")
        if limit.rlimit is not None:
            soft, hard = resource.getrlimit(limit.rlimit)
            count = int(limit.used + limit.needed)
            if soft != resource.RLIM_INFINITY and soft < count:
                resource.setrlimit(limit.rlimit, (count, hard))
