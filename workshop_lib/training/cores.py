"""How many cores this process can use, which is not how many the machine has."""

import math
import os

from workshop_lib import cgroups


def usable_cores() -> int:
    """Return how many cores this process can use: its affinity, or the lowest quota of its cgroups if that is less."""
    cores = len(affinity())
    for folder in cgroups.folders("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            try:
                words = " ".join((folder / name).read_text() for name in names).split()
                quota, period = map(int, words)
            except (OSError, ValueError):
                continue  # no such file, or "max", which means no limit
            if quota > 0:
                cores = min(cores, max(1, math.ceil(quota / period)))
    return cores


def affinity() -> set[int]:
    """Return the numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))  # macOS has no affinity
