"""Ranks that are threads of this process, for functions that use nothing but collectives."""

import copy
import functools
import operator
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

LIMIT_S = 10.0


class Meeting:
    """Where the ranks of a communicator leave their values for each other."""

    def __init__(self, size: int):
        self.values: list = [None] * size
        self.barrier = threading.Barrier(size, timeout=LIMIT_S)
        self.duplicates: dict[int, Meeting] = {}


class ThreadComm:
    """One rank's communicator. Its collectives take the same arguments as in mpi4py, and add up."""

    def __init__(self, rank: int, size: int, meeting: Meeting):
        self.rank = rank
        self.size = size
        self._meeting = meeting
        self._duplicates = 0

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Dup(self) -> "ThreadComm":
        self._duplicates += 1
        meeting = self._meeting.duplicates.setdefault(self._duplicates, Meeting(self.size))
        return ThreadComm(self.rank, self.size, meeting)

    def Free(self) -> None:
        pass

    def allgather(self, value) -> list:
        self._meeting.values[self.rank] = copy.deepcopy(value)
        self._meeting.barrier.wait()
        values = copy.deepcopy(self._meeting.values)
        self._meeting.barrier.wait()
        return values

    def allreduce(self, value):
        return functools.reduce(operator.add, self.allgather(value))

    def gather(self, value, root: int = 0) -> list | None:
        values = self.allgather(value)
        return values if self.rank == root else None

    def reduce(self, value, root: int = 0):
        total = self.allreduce(value)
        return total if self.rank == root else None

    def bcast(self, value, root: int = 0):
        return self.allgather(value)[root]

    def barrier(self) -> None:
        self.allgather(None)

    def Allreduce(self, array, total: np.ndarray) -> None:
        own = array if isinstance(array, np.ndarray) else total  # MPI.IN_PLACE is no array
        total[...] = self.allreduce(own)

    def Bcast(self, array: np.ndarray, root: int = 0) -> None:
        array[...] = self.bcast(array, root)

    def Allgather(self, array: np.ndarray, into: np.ndarray) -> None:
        into[...] = np.reshape(self.allgather(array), into.shape)


def run(size: int, function: Callable) -> list:
    """What function(comm) returns or raises on each of `size` ranks. When one raises, the others stop waiting."""
    meeting = Meeting(size)

    def on_rank(rank: int):
        try:
            return function(ThreadComm(rank, size, meeting))
        except Exception as error:
            for each in (meeting, *meeting.duplicates.values()):
                each.barrier.abort()
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(on_rank, range(size)))
