"""How many cores this process can use, which is not how many the machine has."""

import math
import os
from pathlib import Path


def usable_cores() -> int:
    """Cores that this process can use: its affinity, and the quota of its cgroup if lower."""
    cores = len(affinity())
    for quota_file, period_file in (
        ("cpu.max", None),
        ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"),
    ):
        try:
            words = (Path("/sys/fs/cgroup") / quota_file).read_text().split()
            if period_file is not None:
                words += (Path("/sys/fs/cgroup") / period_file).read_text().split()
            quota, period = int(words[0]), int(words[1])
        except (OSError, ValueError, IndexError):
            continue  # no such file, or "max": no limit
        if quota > 0:
            cores = min(cores, max(1, math.ceil(quota / period)))
    return cores


def affinity() -> set[int]:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))  # macOS has no affinity
