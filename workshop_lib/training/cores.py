"""How many cores this process can use, which is not how many the machine has."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Return how many cores this process can use: its affinity, or the lowest quota of its cgroups if that is less."""
    cores = len(affinity())
    for folder in cgroup_folders("cpu"):
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


def cgroup_folders(controller: str) -> Iterator[Path]:
    """Yield the folder of this process's cgroup and the folders of the cgroups above it, whose limits apply to it too.

    Version 1 of cgroups has a separate tree for each controller ("cpu", "memory"). Version 2 has one tree for all.
    """
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return  # macOS has no cgroups
    for line in lines:  # "3:cpu,cpuacct:/a/b" in version 1, "0::/a/b" in version 2
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = CGROUPS / controller if controllers else CGROUPS
        # A container may see the host's path here, although it can read only the top of that path.
        own = top / path.strip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))
