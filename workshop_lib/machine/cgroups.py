"""The cgroups of this process, through which a container or a job limits it. Uses the standard library alone."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def folders(controller: str) -> Iterator[Path]:
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


def number(file: Path) -> float:
    """The number in this file; infinite if the file isn't there, or says "max", which means no limit."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return math.inf


def rows(file: Path) -> dict[str, int]:
    """The numbers in this file of names and numbers; empty if it isn't there."""
    try:
        return {name: int(value) for name, value in map(str.split, file.read_text().splitlines())}
    except (OSError, ValueError):
        return {}


def available_bytes() -> float:
    """Bytes of memory that this process's cgroups have left; infinite if they set no limit."""
    available = math.inf
    for folder in folders("memory"):
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit_bytes, used_bytes = number(folder / limit), number(folder / used)
            if math.isfinite(limit_bytes) and math.isfinite(used_bytes):
                # The file cache counts as used, but the kernel drops it when memory is needed.
                cached_bytes = rows(folder / "memory.stat").get(cache, 0)
                available = min(available, limit_bytes - used_bytes + cached_bytes)
    return available


def memory_bytes() -> float:
    """Bytes of memory that this process's cgroups allow, or that the machine has, if that's less."""
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [number(folder / name) for folder in folders("memory") for name in names]
    return min([*limits, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")])


def killed_for_memory() -> int:
    """How many processes of this process's own cgroup the kernel has killed so far because memory ran out."""
    for folder in folders("memory"):
        for name in ("memory.events", "memory.oom_control"):
            if "oom_kill" in (counts := rows(folder / name)):
                return counts["oom_kill"]
    return 0
