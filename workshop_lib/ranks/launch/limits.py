"""What ranks need, and what this host's limits allow: a limit that's too low is named before anything starts."""

import math
import os
import re
import resource
import socket
import sys
from typing import NamedTuple

import psutil

from workshop_lib.errors import cause
from workshop_lib.machine import cgroups
from workshop_lib.ranks.faults.rank_errors import RankError

LOOPBACK = "127.0.0.1"
LOOPBACK_LIMIT_S = 2.0  # the kernel itself answers, so only a firewall takes longer


class ProcessLimit(NamedTuple):
    """A limit of each process. `unit` is one of `what` as the system counts it; `errors` finds its errors' texts."""

    number: int
    option: str  # of the shell's `ulimit`
    what: str
    unit: int
    errors: str


OPEN_FILES = ProcessLimit(resource.RLIMIT_NOFILE, "-n", "open files", 1, "Too many open files")
NO_MEMORY = r"MemoryError|bad_alloc|an't allocate memory|annot allocate memory|can't start new thread|failed to map"
# What one process needs of each, measured with 2 ranks that train with DDP. The process that imports PyTorch computes
# for 4 s, or 9 s on a busy machine. Ranks start where a file may have 3 MB, but not with 0.1 MB. They train with 2.2 GB
# of addresses and not with 1.7, and with 0.6 GB of data and not with 0.4.
NEEDED = {
    ProcessLimit(resource.RLIMIT_CPU, "-t", "seconds of CPU time", 1, "SIGXCPU"): 60,
    ProcessLimit(resource.RLIMIT_FSIZE, "-f", "MB in one file", 10**6, "File too large|PMIx_Init failed"): 16,
    ProcessLimit(resource.RLIMIT_AS, "-v", "MB of virtual memory", 10**6, NO_MEMORY): 2000,
    ProcessLimit(resource.RLIMIT_DATA, "-d", "MB of data", 10**6, NO_MEMORY): 550,
}


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
        return f"they need about {self.needed:,} {self.what}; {_number(self.allowed)} are allowed here{used}"

    def __str__(self) -> str:
        return f"{_number(self.allowed)} {self.what}"


def _number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def of_ranks(n: int, threads_per_rank: int = 1, all_here: bool = True) -> list[Limit]:
    """Every limit that keeps `n` ranks from training on this host. all_here: whether all of them are here.

    What they need was measured with 2 and 8 ranks, training with DDP. The controller had 61 and 74 open files. All
    processes together had 69 and 159 threads; each rank had 15, and 7 more with four threads to compute with. Two ranks
    started in a container of 560 MB, but not in one of 480 MB.
    """
    here = n if all_here else 0
    limits = [_of_process(limit, needed) for limit, needed in _needed(n).items()]
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
    if math.isfinite(cgroups.available_bytes()):
        remedy = "Give this container or job more, as with `docker run --memory` or Slurm's `--mem`."
        limits.append(Limit("MB of memory", 440 + 40 * here, cgroups.memory_bytes() / 1e6, 0, remedy))
    return limits


def _needed(n: int) -> dict[ProcessLimit, int]:
    """What a process needs of each of its limits if there are `n` ranks."""
    return {OPEN_FILES: 128 + 4 * n, **NEEDED}


def _of_process(limit: ProcessLimit, needed: int) -> Limit:
    """This limit and what a process may raise it to."""
    hard = resource.getrlimit(limit.number)[1]
    allowed = math.inf if hard == resource.RLIM_INFINITY else hard / limit.unit
    value = 1024 if limit is OPEN_FILES else "unlimited"
    remedy = (
        f"Run `ulimit {limit.option} {value}` before you start this; if that's refused, open a new terminal, or start "
        "it in a job: login nodes often have low limits."
    )
    return Limit(limit.what, needed, allowed, 0, remedy)


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


def loopback_trouble() -> str:
    """What keeps programs on this host from reaching each other, as the end of a sentence; empty if nothing does."""
    try:
        with socket.socket() as listening:
            listening.bind((LOOPBACK, 0))
            listening.listen()
            socket.create_connection(listening.getsockname(), timeout=LOOPBACK_LIMIT_S).close()
    except OSError as error:
        return f"programs on this host cannot reach each other at {LOOPBACK}: {cause(error)}"
    return ""


LOOPBACK_REMEDY = (
    "The loopback interface may be down, as in some sandboxes and network namespaces: run `ip link set lo up` there as "
    "root, or start the workshop outside."
)


def require(n: int, threads_per_rank: int = 1, all_here: bool = True) -> None:
    """Let this process and those that it starts use what `n` ranks need, or raise RankError.

    It is raised if a limit is too low, or if programs on this host cannot reach each other.
    """
    for limit in of_ranks(n, threads_per_rank, all_here):
        if limit.is_too_low:
            raise RankError(f"The ranks did not start: {limit.found}. {limit.remedy}")
    for each, needed in _needed(n).items():
        soft, hard = resource.getrlimit(each.number)
        if soft != resource.RLIM_INFINITY and soft < needed * each.unit:
            resource.setrlimit(each.number, (needed * each.unit, hard))
    if trouble := loopback_trouble():
        raise RankError(f"The ranks did not start: {trouble}. {LOOPBACK_REMEDY}")


def behind(error: str) -> str:
    """A sentence on the limits of a process on this host that may be the cause of this error; empty if none may be."""
    found = []
    for limit in _needed(0):
        soft = resource.getrlimit(limit.number)[0]
        if soft != resource.RLIM_INFINITY and re.search(limit.errors, error):
            found.append(f"{_number(soft / limit.unit)} {limit.what} (`ulimit {limit.option}`)")
    return f"A process may have no more than {' and '.join(found)} here, which may be the cause." if found else ""
