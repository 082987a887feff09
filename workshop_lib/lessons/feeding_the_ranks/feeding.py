"""Ways to give each rank its rows of one data file, which 09_feeding_the_ranks compares in bytes, files and messages.

The file is a header followed by rows of one length, like MNIST's images. All ranks call a way together, with the same
`path` and the same `parts`: for each rank, the (offset, bytes) of its rows in the file. A way blocks, and returns this
rank's rows as uint8 [bytes], with their Cost. For p ranks and a file of n bytes:

| way | bytes requested per rank | files opened | sent |
|---|---|---|---|
| everyone reads all | n | p | nothing |
| rank 0 scatters | n on rank 0, none elsewhere | 1 | n (p - 1)/p by rank 0, in p - 1 messages |
| own part | n/p | p | nothing |
| MPI-IO | n/p | p | whatever the MPI library thinks best |
| a file per rank | n/p | p, each a different one | nothing |

Not all bytes that a program requests come from storage: the operating system keeps what was read or written before in
memory, in its page cache. `os_counts` counts both requested and fetched bytes, and `drop_cache` empties the cache for
one file.
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
    """What a way cost this rank, by the program's own count, which does not include MPI-IO's messages."""

    bytes_read: int = 0
    files_opened: int = 0
    bytes_sent: int = 0
    messages_sent: int = 0


Way = Callable[[Any, str | os.PathLike, Parts], tuple[np.ndarray, Cost]]


class FeedingRow(TypedDict):
    """Measurements of one way, cold or warm. The first two lists are by round, the others by rank."""

    way: str
    cold: bool
    ranks: int
    file_bytes: int
    seconds: list[float]  # by round: the time of the slowest rank
    storage_bytes: list[int | None]  # by round: fetched for all ranks together; None if the system does not say
    asked_bytes: list[int] | None  # by rank: requested from the operating system
    bytes_read: list[int]  # this and the following lists are by rank; see Cost
    files_opened: list[int]
    bytes_sent: list[int]
    messages_sent: list[int]


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


def parts_of(rows: int, row_bytes: int, header_bytes: int, size: int) -> Parts:
    """The (offset, bytes) of each rank's rows for `size` ranks, whose numbers of rows differ by at most one."""
    bounds = [shard_bounds(rows, rank, size) for rank in range(size)]
    return [(header_bytes + start * row_bytes, (stop - start) * row_bytes) for start, stop in bounds]


def everyone_reads(comm, path, parts: Parts) -> tuple[np.ndarray, Cost]:
    """Each rank reads the whole file. Its part is a view, so the whole file stays in memory. No messages."""
    whole = _read(path, 0, os.path.getsize(path))
    offset, nbytes = parts[comm.rank]
    return whole[offset : offset + nbytes], Cost(len(whole), 1)


def root_scatters(comm, path, parts: Parts) -> tuple[np.ndarray, Cost]:
    """Rank 0 reads the whole file, which has to fit into its memory, and sends each rank its part.

    Rank 0 sends p - 1 messages, which hold all parts but its own. The other ranks read and send nothing.
    """
    mine = np.empty(parts[comm.rank][1], np.uint8)
    cost = Cost()
    sending = None
    if comm.rank == 0:
        whole = _read(path, 0, os.path.getsize(path))
        offsets, sizes = zip(*parts, strict=True)
        sending = [whole, (sizes, offsets), MPI.BYTE]
        cost = Cost(len(whole), 1, sum(sizes[1:]), comm.size - 1)
    comm.Scatterv(sending, [mine, MPI.BYTE])
    return mine, cost


def own_part(comm, path, parts: Parts) -> tuple[np.ndarray, Cost]:
    """Each rank opens the file and reads its own part. No messages, and no rank waits for another."""
    mine = _read(path, *parts[comm.rank])
    return mine, Cost(len(mine), 1)


def collective_read(comm, path, parts: Parts) -> tuple[np.ndarray, Cost]:
    """Each rank reads its own part through MPI-IO: all ranks open the file, and read it in one collective.

    MPI knows what all ranks want before anything is read, so some ranks may read large pieces and send them on to
    others: two-phase I/O (Thakur, Gropp and Lusk 1999). Raises InputError, on all ranks, when the file is too short
    for any of them.
    """
    offset, nbytes = parts[comm.rank]
    mine = np.empty(nbytes, np.uint8)
    file = MPI.File.Open(comm, os.fspath(path), MPI.MODE_RDONLY)
    try:
        # The status of the read does not help: if one rank reads for others, Open MPI reports success even when
        # bytes are missing.
        for of_rank in parts:
            _check_length(path, *of_rank, min(of_rank[1], max(0, file.Get_size() - of_rank[0])))
        file.Read_at_all(offset, [mine, MPI.BYTE])
    finally:
        file.Close()
    return mine, Cost(nbytes, 1)


def own_file(comm, path, parts: Parts) -> tuple[np.ndarray, Cost]:
    """Each rank reads a file of its own, which `cut_files` wrote. No messages.

    Raises InputError unless the files were cut for this number of ranks.
    """
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
    """The path of the file with the rows of `rank`, cut from `path` for `size` ranks."""
    return Path(f"{path}.{rank}-of-{size}")


def cut_files(comm, path, parts: Parts) -> None:
    """Write each rank's part of `path` to a file of its own. All ranks call it, and it blocks."""
    mine, _ = own_part(comm, path, parts)
    with replacing(piece_of(path, comm.rank, comm.size)) as temporary:
        mine.tofile(temporary)
    comm.Barrier()


def drop_cache(path) -> None:
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


def counted(call: Callable[[], Any]) -> CountedCall:
    """Make a call, and measure the seconds it takes and the change of `os_counts`."""
    before = os_counts()
    began = time.perf_counter()
    returned = call()
    seconds = time.perf_counter() - began
    after = os_counts()
    counts = before and after and OsCounts(*np.subtract(after, before).tolist())
    return CountedCall(returned, seconds, counts)


def measure(comm, path, parts: Parts, repeats: int, ways: dict[str, Way] = WAYS) -> list[FeedingRow]:
    """Time each way `repeats` times, cold and then warm. Each round runs all ways, so they alternate.

    All ranks call it, and it blocks. Every rank gets the same rows, one per way for cold and one for warm. Raises
    WorkshopError, on every rank, when some rank got bytes that are not those of its part.
    """
    checksum = zlib.crc32(own_part(comm, path, parts)[0].data)
    rounds: dict[tuple[str, bool], list[list[CountedCall]]] = {
        (name, cold): [] for name in ways for cold in (True, False)
    }
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
            of_way.append(comm.allgather(CountedCall(cost, seconds, counts)))
    size = os.path.getsize(path)
    return [_row(name, cold, size, of_way) for (name, cold), of_way in rounds.items()]


def _row(way: str, cold: bool, file_bytes: int, rounds: list[list[CountedCall]]) -> FeedingRow:
    """Summarize a way's rounds, [round][rank], in one row. Its costs and requested bytes are the last round's."""
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
    """Read consecutive rows, from `offset` on, in one read: uint8 [rows, row_bytes]."""
    return _read(path, offset, rows * row_bytes).reshape(rows, row_bytes)


def read_rows(path, header_bytes: int, row_bytes: int, indices: Iterable[int]) -> np.ndarray:
    """Read rows at any indices of one file, with one read per row: uint8 [len(indices), row_bytes]."""
    with open(path, "rb", buffering=0) as file:
        return np.stack([_fill(file, header_bytes + int(i) * row_bytes, row_bytes) for i in indices])


def read_files(paths: Iterable) -> np.ndarray:
    """Read one row from each file: uint8 [files, bytes]. Each file is opened, read once and closed."""
    return np.stack([_read(path, 0, os.path.getsize(path)) for path in paths])


def throttled(read: Callable[[int], np.ndarray], bytes_per_s: float) -> Callable[[int], np.ndarray]:
    """Slow `read` down to the speed of a storage that gives this rank at most `bytes_per_s`.

    The returned function sleeps for the rest of the time. So it leaves its core free, like a thread that waits for a
    disk.
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
    """Read exactly `nbytes` bytes. A single call may return fewer, and always does beyond 2 GiB."""
    array = np.empty(nbytes, np.uint8)
    done = 0
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
