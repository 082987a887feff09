"""Signs that ranks on this host move, although their lines stay the same: messages, touched memory, computing.

A rank inside one long operation stays at its line. But its messages change the segments of memory that Open MPI's ranks
share, and an object that arrives needs pages of memory. Ranks that wait for each other change neither.
"""

import contextlib
import os
import zlib
from pathlib import Path
from typing import NamedTuple

import psutil

from workshop_lib.ranks.launch.processes import stat_fields

FAULTS_PER_S = 50  # pages that a rank's other threads may touch while the rank waits
FAULTS = 30
IDLE_SHARE = 0.1  # a process that waits without spinning uses at most this share of a core
STATE, MINOR_FAULTS = 0, 7  # places of fields behind the name in /proc/PID/stat


class Activity(NamedTuple):
    """What ranks on this host have done so far: by rank the CPU seconds and the pages touched, if they are known.

    segments: a checksum of the memory that all ranks of the call share; None if some are on other hosts, or nothing
    tells.
    """

    segments: int | None
    cpu_s: dict[int, float]
    faults: dict[int, int]


def activity_of(segments: Path | None, processes: dict[int, psutil.Process]) -> Activity:
    """The activity of these processes, which share the segments in this folder."""
    cpu_s = {}
    faults = {}
    for rank, process in processes.items():
        with contextlib.suppress(psutil.Error, OSError):  # the process is gone, or there is no /proc
            cpu_s[rank] = sum(process.cpu_times()[:2])
            faults[rank] = int(stat_fields(Path(f"/proc/{process.pid}/stat"))[MINOR_FAULTS])
    checksum = None
    if segments is not None and len(faults) == len(processes):
        with contextlib.suppress(OSError):
            checksum = _checksum(sorted(segments.glob("sm_segment.*")))
    return Activity(checksum, cpu_s, faults)


def moved(before: Activity, now: Activity, seconds: float) -> bool:
    """Whether a message or an object was on its way in the meantime."""
    if before.segments is None or now.segments is None:
        return before.segments != now.segments
    most = FAULTS + FAULTS_PER_S * seconds
    return before.segments != now.segments or any(now.faults[rank] - before.faults[rank] > most for rank in now.faults)


def asleep(pid: int) -> bool:
    """Whether no thread of this process computes, or waits for a core to do so."""
    return not any(map(_runs, Path(f"/proc/{pid}/task").glob("*/stat")))


def _runs(stat: Path) -> bool:
    try:
        return stat_fields(stat)[STATE] in "RD"
    except OSError:  # this thread has ended
        return False


def _checksum(files: list[Path]) -> int | None:
    """A checksum of what these files hold, without the holes that nobody has written to; None without files."""
    checksum = 0
    for file in files:
        with open(file, "rb", buffering=0) as segment:
            end = os.fstat(segment.fileno()).st_size
            at = 0
            while at < end:
                try:
                    at = os.lseek(segment.fileno(), at, os.SEEK_DATA)
                except OSError:  # the rest is a hole
                    break
                hole = os.lseek(segment.fileno(), at, os.SEEK_HOLE)
                checksum = zlib.crc32(os.pread(segment.fileno(), hole - at, at), checksum)
                at = hole
    return checksum if files else None
