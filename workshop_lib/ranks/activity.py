"""Signs that ranks on this host move, although their lines stay the same: messages, touched memory, computing.

A rank inside one long operation stays at its line. But its messages change the segments of memory that Open MPI's ranks
share, and an object that arrives needs pages of memory. Ranks that wait for each other change neither.
"""

import os
import zlib
from pathlib import Path
from typing import NamedTuple

from .processes import stat_fields

FAULTS_PER_S = 50  # pages that a rank's other threads may touch while the rank waits
FAULTS = 30
IDLE_SHARE = 0.1  # a process that waits without spinning uses at most this share of a core
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
TICKS = (11, 12)  # user and system time, behind the name in /proc/PID/stat
STATE, MINOR_FAULTS = 0, 7


class Activity(NamedTuple):
    """What ranks have done so far: a checksum of the shared segments, and by rank the CPU seconds and pages touched."""

    segments: int
    cpu_s: dict[int, float]
    faults: dict[int, int]


def measure(segments: Path, pids: dict[int, int]) -> Activity | None:
    """The activity of these processes; None if the system does not say enough, or a process is gone."""
    try:
        rows = {rank: stat_fields(Path(f"/proc/{pid}/stat")) for rank, pid in pids.items()}
        checksum = _checksum(sorted(segments.glob("sm_segment.*")))
    except OSError:
        return None
    if checksum is None:
        return None
    cpu_s = {rank: sum(int(fields[tick]) for tick in TICKS) * TICK_S for rank, fields in rows.items()}
    return Activity(checksum, cpu_s, {rank: int(row[MINOR_FAULTS]) for rank, row in rows.items()})


def moved(before: Activity, now: Activity, seconds: float) -> bool:
    """Whether a message or an object was on its way in the meantime."""
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
