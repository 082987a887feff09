"""Ways in which ranks get their rows of one data file, and what each costs in bytes, files and messages.

The file has a header and then rows of one length, as MNIST's images do. All ranks call a way together, with
the same `path` and the same `parts`: for each rank (offset, bytes), where in the file its rows lie. It
blocks, and returns this rank's rows as uint8 [bytes], with their Cost. For p ranks and a file of n bytes:

| way | bytes that a rank asks for | files opened | sent |
|---|---|---|---|
| everyone reads all | n | p | nothing |
| rank 0 scatters | n on rank 0, none elsewhere | 1 | n (p - 1)/p by rank 0, in p - 1 messages |
| own part | n/p | p | nothing |
| MPI-IO | n/p | p | whatever the MPI library thinks best |
| a file per rank | n/p | p, each a different one | nothing |

What a program asks for does not have to come from the storage: the operating system keeps in memory what was
read or written before, in its page cache. `os_counts` gives both numbers, and `drop_cache` empties the cache
for one file.
"""

import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
from mpi4py import MPI

from workshop_lib.data.shard import shard_bounds
from workshop_lib.errors import InputError, WorkshopError
from workshop_lib.paths import replacing

Parts = list[tuple[int, int]]


class Cost(NamedTuple):
    """What a way took on this rank, by the program's own count. Of MPI-IO's messages it knows nothing."""

    bytes_read: int = 0
    files_opened: int = 0
    bytes_sent: int = 0
    messages_sent: int = 0


Way = Callable[[Any, str | os.PathLike, Parts], tuple[np.ndarray, Cost]]


class FeedingRow(TypedDict):
    """What was measured of one way, cold or warm: lists by round, then lists by rank."""

    way: str
    cold: bool
    ranks: int
    file_bytes: int
    seconds: list[float]  # of the slowest rank
    storage_bytes: list[int | None]  # from the storage for all ranks together; None: the system does not say
    asked_bytes: list[int] | None  # by rank, as the rest; of the operating system
    bytes_read: list[int]  # see Cost
    files_opened: list[int]
    bytes_sent: list[int]
    messages_sent: list[int]


class OsCounts(NamedTuple):
    """Bytes that a process asked the operating system for, and what it had to fetch from the storage for them."""

    asked_bytes: int
    storage_bytes: int


class Counted(NamedTuple):
    """What a call returned, the seconds that it took, and what the operating system counted, if it does."""

    returned: Any
    seconds: float
    counts: OsCounts | None


def write_idx(path: str | os.PathLike, images: np.ndarray, copies: int = 1) -> int:
    """Write `images` (uint8 [n, 28, 28]) `copies` times over as one file in MNIST's format; returns its rows.

    One process calls it. The file appears as a whole or not at all.
    """
    rows = copies * len(images)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, rows, *images.shape[1:]))
        for _ in range(copies):
            file.write(np.ascontiguousarray(images).data)
    return rows


def parts_of(rows: int, row_bytes: int, header_bytes: int, size: int) -> Parts:
    """For each of `size` ranks the (offset, bytes) of its rows; their numbers of rows differ by at most one."""
    bounds = [shard_bounds(rows, rank, size) for rank in range(size)]
    return [(header_bytes + start * row_bytes, (stop - start) * row_bytes) for start, stop in bounds]


def everyone_reads(comm, path, parts: Parts) -> tuple[np.ndarray, Cost]:
    """Each rank reads the whole file, all of which stays in memory: its part is a view. No messages."""
    whole = _read(path, 0, os.path.getsize(path))
    offset, nbytes = parts[comm.rank]
    return whole[offset : offset + nbytes], Cost(len(whole), 1)


def root_scatters(comm, path, parts: Parts) -> tuple[np.ndarray, Cost]:
    """Rank 0 reads the whole file and sends each rank its part; it needs the memory for all of it.

    Rank 0 sends p - 1 messages, together all parts but its own; the others read and send nothing.
    """
    mine, cost, sending = np.empty(parts[comm.rank][1], np.uint8), Cost(), None
    if comm.rank == 0:
        whole = _read(path, 0, os.path.getsize(path))
        offsets, sizes = zip(*parts, strict=True)
        sending = [whole, (sizes, offsets), MPI.BYTE]
        cost = Cost(len(whole), 1, sum(sizes[1:]), comm.size - 1)
    comm.Scatterv(sending, [mine, MPI.BYTE])
    return mine, cost


def own_part(comm, path, parts: Parts) -> tuple[np.ndarray, Cost]:
    """Each rank opens the file and reads its part. No messages, and no rank has to wait for another."""
    mine = _read(path, *parts[comm.rank])
    return mine, Cost(len(mine), 1)


def collective_read(comm, path, parts: Parts) -> tuple[np.ndarray, Cost]:
    """The same through MPI: all ranks open the file and read together, each its part.

    MPI knows what all ranks want before anything is read, so some may read large pieces for others and send
    them on: two-phase I/O (Thakur, Gropp and Lusk 1999). Raises InputError, on all ranks, when the file is
    too short for any of them.
    """
    offset, nbytes = parts[comm.rank]
    mine = np.empty(nbytes, np.uint8)
    file = MPI.File.Open(comm, os.fspath(path), MPI.MODE_RDONLY)
    try:
        # Not by the status: where one rank reads for others, Open MPI's says that all came even if it did not.
        for of_rank in parts:
            _check_length(path, *of_rank, min(of_rank[1], max(0, file.Get_size() - of_rank[0])))
        file.Read_at_all(offset, [mine, MPI.BYTE])
    finally:
        file.Close()
    return mine, Cost(nbytes, 1)


def own_file(comm, path, parts: Parts) -> tuple[np.ndarray, Cost]:
    """Each rank reads its own file, which `cut_files` made for this number of ranks (else InputError); no messages."""
    piece = piece_of(path, comm.rank, comm.size)
    if not piece.exists():
        raise InputError(
            f"there is no {piece.name}: files cut for another number of ranks do not fit {comm.size} ranks; "
            "cut them again with cut_files."
        )
    mine = _read(piece, 0, parts[comm.rank][1])
    return mine, Cost(len(mine), 1)


WAYS: dict[str, Way] = {
    "everyone reads all": everyone_reads,
    "rank 0 scatters": root_scatters,
    "own part": own_part,
    "MPI-IO": collective_read,
    "a file per rank": own_file,
}


def piece_of(path, rank: int, size: int) -> Path:
    """Where the rows of `rank` are, cut out of `path` for `size` ranks."""
    return Path(f"{path}.{rank}-of-{size}")


def cut_files(comm, path, parts: Parts) -> None:
    """Each rank writes its part of `path` to a file of its own; all ranks call it, and it blocks."""
    mine, _ = own_part(comm, path, parts)
    with replacing(piece_of(path, comm.rank, comm.size)) as temporary:
        mine.tofile(temporary)
    comm.Barrier()


def drop_cache(path) -> None:
    """Ask the operating system to forget what it holds of `path` in memory, so that it has to read it again.

    It is only a request: file systems that live in memory, and macOS, ignore it, and `os_counts` shows whether
    the system followed it. What was written is brought to the storage first, since the cache has to keep it
    until then.
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
    """What this process has read so far by the operating system's count, or None where it does not say.

    Asking costs some 100 bytes of the first. Source: proc_pid_io(5), rchar and read_bytes.
    """
    try:
        lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return OsCounts(int(lines["rchar"]), int(lines["read_bytes"]))
    except (OSError, KeyError, ValueError):
        return None


def counted(call: Callable[[], Any]) -> Counted:
    """Call it, with a look at the clock and at `os_counts` before and after."""
    before, began = os_counts(), time.perf_counter()
    returned = call()
    seconds, after = time.perf_counter() - began, os_counts()
    counts = before and after and OsCounts(*np.subtract(after, before).tolist())
    return Counted(returned, seconds, counts)


def measure(comm, path, parts: Parts, repeats: int, ways: dict[str, Way] = WAYS) -> list[FeedingRow]:
    """Time each way `repeats` times, cold and then warm; in a round every way has its turn.

    All ranks call it, and it blocks; every rank gets the same rows, one for each way, cold and warm. Raises
    WorkshopError, on every rank, when some rank got bytes that are not those of its part.
    """
    checksum = zlib.crc32(own_part(comm, path, parts)[0].data)
    rounds: dict[tuple[str, bool], list[list[Counted]]] = {(name, cold): [] for name in ways for cold in (True, False)}
    for _ in range(repeats):
        for (name, cold), of_way in rounds.items():
            if cold:
                for file in (path, piece_of(path, comm.rank, comm.size)):
                    if os.path.exists(file):
                        drop_cache(file)
            comm.Barrier()
            (mine, cost), seconds, counts = counted(partial(ways[name], comm, path, parts))
            right = comm.allgather(zlib.crc32(mine.data) == checksum)
            wrong = [str(rank) for rank, fine in enumerate(right) if not fine]
            if wrong:
                raise WorkshopError(f"with {name!r}, rank {', '.join(wrong)} got other bytes than those of its part.")
            of_way.append(comm.allgather(Counted(cost, seconds, counts)))
    size = os.path.getsize(path)
    return [_row(name, cold, size, of_way) for (name, cold), of_way in rounds.items()]


def _row(way: str, cold: bool, file_bytes: int, rounds: list[list[Counted]]) -> FeedingRow:
    """The row of a way's rounds, each with Cost, time and counts by rank; the costs are those of the last round."""
    counts = [[of.counts for of in of_ranks if of.counts] for of_ranks in rounds]
    known = all(len(of_ranks) == len(rounds[-1]) for of_ranks in counts)
    read, opened, sent, messages = (
        list(of_ranks) for of_ranks in zip(*(of.returned for of in rounds[-1]), strict=True)
    )
    return FeedingRow(
        way=way,
        cold=cold,
        ranks=len(rounds[-1]),
        file_bytes=file_bytes,
        seconds=[max(of.seconds for of in of_ranks) for of_ranks in rounds],
        storage_bytes=[sum(of.storage_bytes for of in of_ranks) if known else None for of_ranks in counts],
        asked_bytes=[of.asked_bytes for of in counts[-1]] if known else None,
        bytes_read=read,
        files_opened=opened,
        bytes_sent=sent,
        messages_sent=messages,
    )


def read_block(path, offset: int, row_bytes: int, rows: int) -> np.ndarray:
    """These rows, which follow one another: uint8 [rows, row_bytes], in one read."""
    return _read(path, offset, rows * row_bytes).reshape(rows, row_bytes)


def read_rows(path, header_bytes: int, row_bytes: int, indices: Iterable[int]) -> np.ndarray:
    """Rows wherever they are: uint8 [len(indices), row_bytes], in one read each, of one file."""
    with open(path, "rb", buffering=0) as file:
        return np.stack([_fill(file, header_bytes + int(i) * row_bytes, row_bytes) for i in indices])


def read_files(paths: Iterable) -> np.ndarray:
    """A file per row: uint8 [files, bytes], each opened, read once and closed."""
    return np.stack([_read(path, 0, os.path.getsize(path)) for path in paths])


def throttled(read: Callable[[int], np.ndarray], bytes_per_s: float) -> Callable[[int], np.ndarray]:
    """`read`, as slow as a storage that gives this rank no more than `bytes_per_s`.

    It sleeps for the rest of the time, so it leaves its core to others, as a thread does that waits for a disk.
    """

    def slow(i: int) -> np.ndarray:
        began = time.perf_counter()
        batch = read(i)
        time.sleep(max(0.0, batch.nbytes / bytes_per_s - (time.perf_counter() - began)))
        return batch

    return slow


def _read(path, offset: int, nbytes: int) -> np.ndarray:
    with open(path, "rb", buffering=0) as file:
        return _fill(file, offset, nbytes)


def _fill(file, offset: int, nbytes: int) -> np.ndarray:
    """Exactly these bytes: a single call may give fewer, at 2 GiB at the latest."""
    array, done = np.empty(nbytes, np.uint8), 0
    file.seek(offset)
    while done < nbytes and (got := file.readinto(array.data[done:])):
        done += got
    _check_length(file.name, offset, nbytes, done)
    return array


def _check_length(path, offset: int, nbytes: int, got: int) -> None:
    if got != nbytes:
        raise InputError(
            f"{path}: {nbytes:,} bytes from {offset:,} on were asked for, and {got:,} are there; "
            "is it the right file, whole, and cut for these rows?"
        )
