"""The emulated storage of 09_feeding_the_ranks: a file server that all ranks share, under the clock of emulated time.

The files and the bytes that ranks read are real. What they take is emulated, as on the emulated network. server.py says
what the server takes.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from mpi4py import MPI

from workshop_lib import emulation
from workshop_lib.machine.emulation.clock import CLOCK, OnStream, Stream
from workshop_lib.machine.emulation.comm import PLAIN

from lessons.feeding_the_ranks.server import SCALE, ends_of, seconds_of

Piece = tuple[Path, int, int]  # a file, an offset, and the number of bytes from there on


class Storage:
    """The file server, as the ranks of a communicator see it. A read blocks, and all ranks call it together.

    The first read of a file opens it, and the file stays open. opens, nbytes: what this rank has asked for so far.
    """

    def __init__(self, comm: MPI.Intracomm):
        self.ranks = PLAIN(comm).Dup()  # a plain communicator, so that agreeing on times takes no emulated time
        self.opened: set[Path] = set()
        self.opens = 0
        self.nbytes = 0

    def read(self, pieces: list[Piece], alone: bool = False) -> np.ndarray:
        """The bytes of some pieces, (path, offset, nbytes), one after the other: uint8 [bytes].

        alone: this rank reads while no other one does, so only this rank calls it.
        """
        data = np.concatenate([np.fromfile(path, np.uint8, nbytes, offset=offset) for path, offset, nbytes in pieces])
        new = {path for path, _, _ in pieces} - self.opened
        self.opened |= new
        self._wait(len(new), data.nbytes, alone)
        return data

    def read_at_all(self, path: Path, offset: int, nbytes: int) -> np.ndarray:
        """This rank's part of a file, through MPI-IO, for which a single rank opens the file: uint8 [nbytes]."""
        data = np.empty(nbytes, np.uint8)
        file = MPI.File.Open(self.ranks, path, MPI.MODE_RDONLY)
        file.Read_at_all(offset, data)
        file.Close()
        self._wait(int(self.ranks.rank == 0), nbytes)
        return data

    def _wait(self, opens: int, nbytes: int, alone: bool = False) -> None:
        """Move the clock to the end of this rank's request."""
        self.opens += opens
        self.nbytes += SCALE * nbytes
        request = (CLOCK.now_s, seconds_of(opens, nbytes))
        if alone:
            CLOCK.wait_until(sum(request))
        else:
            CLOCK.wait_until(ends_of(self.ranks.allgather(request))[self.ranks.rank])

    def free(self) -> None:
        self.ranks.Free()


class EmulatedFuture:
    """What a helper is working on: `result()` waits for it until `end_s`, and returns its value or raises its error."""

    def __init__(self, value: Any, error: Exception | None, end_s: float):
        self.value = value
        self.error = error
        self.end_s = end_s

    def result(self) -> Any:
        CLOCK.wait_until(self.end_s)
        if self.error is not None:
            raise self.error
        return self.value


class Helper:
    """A thread of the emulated machine, with `submit` as of `ThreadPoolExecutor(max_workers=1)`.

    It has a time of its own. Here it works at once, on the calling thread, so the times are the same in every run.
    """

    def __init__(self) -> None:
        self.stream = Stream()

    def submit(self, call: Callable, *args: Any) -> EmulatedFuture:
        self.stream.wait_stream(CLOCK.stream)
        value = error = None
        with OnStream(self.stream):
            try:
                value = call(*args)
            except Exception as raised:
                error = raised
        return EmulatedFuture(value, error, self.stream.now_s)


class FeedingRow(TypedDict):
    """What one way took, in emulated seconds, and what all ranks asked the storage for."""

    way: str
    ranks: int
    file_bytes: int
    seconds: float  # of the slowest rank
    opens: int
    nbytes: int


def measure_ways(comm, parts: list[tuple[int, int]], ways: dict[str, Callable]) -> list[FeedingRow]:
    """Measure each way once, because emulated times don't vary. All ranks call it, and get the same rows.

    A way, called as way(comm, storage, parts), returns this rank's part of a file. parts: the (offset, bytes) of each
    rank's part.
    """
    places = emulation.current().places
    before, places.scale = places.scale, SCALE
    file_bytes = SCALE * sum(nbytes for _, nbytes in parts)
    rows = []
    for name, way in ways.items():
        storage = Storage(comm)
        comm.Barrier()
        began = time.perf_counter()
        way(comm, storage, parts)
        seconds = time.perf_counter() - began
        of_ranks = storage.ranks.allgather((seconds, storage.opens, storage.nbytes))
        storage.free()
        slowest, opens, nbytes = zip(*of_ranks, strict=True)
        rows.append(
            FeedingRow(
                way=name,
                ranks=comm.size,
                file_bytes=file_bytes,
                seconds=max(slowest),
                opens=sum(opens),
                nbytes=sum(nbytes),
            )
        )
    places.scale = before
    return rows
