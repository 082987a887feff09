"""How many cores this process can use, which is not how many the machine has.

What the operating system, affinities and schedulers count as CPUs are hardware threads. Where a core has two of them,
as on a cloud's machine with two vCPUs, two ranks on its threads compute hardly faster than one.
"""

import math
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from workshop_lib.machine import cgroups
from workshop_lib.words import plural

CPUS = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Return how many cores this process can use: those of its affinity, or its quota if that is less."""
    return min(len(core_ids(affinity())), quota())


def usable_threads() -> int:
    """Return how many hardware threads this process can use: those of its affinity, or its quota if that is less."""
    return min(len(affinity()), quota())


def here() -> str:
    """Return what this process can use, in words."""
    return in_words(usable_cores(), usable_threads())


def in_words(cores: int, threads: int) -> str:
    """Return "4 cores", or "2 hardware threads of 1 core" if there are more hardware threads than cores."""
    of_cores = plural(cores, "core")
    return of_cores if threads <= cores else f"{threads} hardware threads of {of_cores}"


def core_ids(threads: Iterable[int]) -> set[int]:
    """Return the cores of these hardware threads, each by the lowest number among its threads.

    Where the system does not say which threads share a core, as in a container without /sys, each counts as a core.
    """
    cores = set()
    for thread in threads:
        try:
            siblings = (CPUS / f"cpu{thread}" / "topology" / "thread_siblings_list").read_text()  # "0-1" or "0,64"
            cores.add(int(re.split("[-,]", siblings)[0]))
        except (OSError, ValueError):
            cores.add(thread)
    return cores


def quota() -> int:
    """Return the lowest quota of this process's cgroups in hardware threads, rounded up; sys.maxsize without one."""
    threads = sys.maxsize
    for folder in cgroups.folders("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            try:
                words = " ".join((folder / name).read_text() for name in names).split()
                share, period = map(int, words)
            except (OSError, ValueError):
                continue  # no such file, or "max", which means no limit
            if share > 0:
                threads = min(threads, max(1, math.ceil(share / period)))
    return threads


def affinity() -> set[int]:
    """Return the numbers of the hardware threads that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))  # macOS has no affinity
