"""Times ways to give each rank its part of a data file, which 09_feeding_the_ranks writes out, and counts their bytes.

The file is a header followed by rows of one length, like MNIST's images. All ranks call a way together, with the same
`parts`: for each rank, the (offset, bytes) of its rows in the file. A way blocks, and returns this rank's rows as
uint8 [bytes].

Not all bytes that a program requests come from storage: the operating system keeps what was read or written before in
memory, in its page cache. `os_counts` counts both requested and fetched bytes, and `drop_cache` empties the cache for
one file.
"""

import os
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from workshop_lib.paths import replacing
from workshop_lib.training.data.shard import shard_bounds

Parts = list[tuple[int, int]]
Way = Callable[[Any, Parts], np.ndarray]
HEADER_BYTES = 16
ROW_BYTES = 28 * 28


class FeedingRow(TypedDict):
    """Measurements of one way, cold or warm."""

    way: str
    cold: bool
    ranks: int
    file_bytes: int
    seconds: list[float]  # by round: the time of the slowest rank
    storage_bytes: list[int] | None  # by round: fetched for all ranks together; None if the system does not count
    asked_bytes: list[int] | None  # by rank: requested from the operating system in the last round; None likewise


class OsCounts(NamedTuple):
    """Bytes that a process requested from the operating system, and bytes that the system fetched from storage."""

    asked_bytes: int
    storage_bytes: int


class CountedCall(NamedTuple):
    """What a call returned, the seconds it took, and the operating system's counts; None if it does not count."""

    returned: Any
    seconds: float
    counts: OsCounts | None


def write_idx(path: str | os.PathLike, images: np.ndarray, copies: int = 1) -> int:
    """Write `copies` copies of `images` (uint8 [n, 28, 28]) to one file in MNIST's format; return its number of rows.

    One process calls it. The file appears as a whole or not at all.
    """
    rows = copies * len(images)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, rows, *images.shape[1:]))
        for _ in range(copies):
            file.write(np.ascontiguousarray(images).data)
    return rows


def parts_of(rows: int, size: int) -> Parts:
    """The (offset, bytes) of each rank's rows in a file of `rows` images; their numbers differ by at most one."""
    bounds = [shard_bounds(rows, rank, size) for rank in range(size)]
    return [(HEADER_BYTES + start * ROW_BYTES, (stop - start) * ROW_BYTES) for start, stop in bounds]


def read_rows(path: str | os.PathLike, first_row: int, rows: int) -> np.ndarray:
    """Read consecutive rows of the file in one read: uint8 [rows, 784]."""
    offset = HEADER_BYTES + first_row * ROW_BYTES
    return np.fromfile(path, np.uint8, rows * ROW_BYTES, offset=offset).reshape(rows, ROW_BYTES)


def drop_cache(path: str | os.PathLike) -> None:
    """Ask the operating system to drop `path` from its page cache, so that the next read goes to storage.

    This is only a request: macOS ignores it, and so do file systems that live in memory. `os_counts` shows whether the
    system complied. Data that was written is flushed to storage first, because the cache has to keep it until then.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def os_counts() -> OsCounts | None:
    """Bytes that this process has read so far, as the operating system counts them; None if it does not say.

    Each call itself adds about 100 bytes to `asked_bytes`. Source: proc_pid_io(5), rchar and read_bytes.
    """
    try:
        lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return OsCounts(int(lines["rchar"]), int(lines["read_bytes"]))
    except (OSError, KeyError, ValueError):
        return None


def measured(call: Callable[[], Any]) -> CountedCall:
    """Make a call, and measure the seconds it takes and the change of `os_counts`."""
    before = os_counts()
    began = time.perf_counter()
    returned = call()
    seconds = time.perf_counter() - began
    after = os_counts()
    counts = before and after and OsCounts(*np.subtract(after, before).tolist())
    return CountedCall(returned, seconds, counts)


def measure(comm, path: str | os.PathLike, parts: Parts, ways: dict[str, Way], repeats: int) -> list[FeedingRow]:
    """Time each way `repeats` times, cold and then warm. Each round runs all ways, so they alternate.

    All ranks call it, and it blocks. Every rank gets the same rows, one per way for cold and one for warm.
    """
    rounds: dict[tuple[str, bool], list[list[CountedCall]]] = {
        (name, cold): [] for name in ways for cold in (True, False)
    }
    for _ in range(repeats):
        for (name, cold), of_way in rounds.items():
            if cold:
                drop_cache(path)
            comm.Barrier()
            _, seconds, counts = measured(partial(ways[name], comm, parts))
            of_way.append(comm.allgather(CountedCall(None, seconds, counts)))
    file_bytes = os.path.getsize(path)
    return [_row(name, cold, file_bytes, of_way) for (name, cold), of_way in rounds.items()]


def _row(way: str, cold: bool, file_bytes: int, rounds: list[list[CountedCall]]) -> FeedingRow:
    """Summarize a way's rounds, [round][rank], in one row."""
    counts = [[call.counts for call in calls if call.counts is not None] for calls in rounds]
    known = all(len(of_ranks) == len(rounds[-1]) for of_ranks in counts)
    return FeedingRow(
        way=way,
        cold=cold,
        ranks=len(rounds[-1]),
        file_bytes=file_bytes,
        seconds=[max(call.seconds for call in calls) for calls in rounds],
        storage_bytes=[sum(each.storage_bytes for each in of_ranks) for of_ranks in counts] if known else None,
        asked_bytes=[each.asked_bytes for each in counts[-1]] if known else None,
    )
