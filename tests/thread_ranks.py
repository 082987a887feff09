"""Ranks that are threads of this process, for code that only exchanges messages: quicker than processes."""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from unittest.mock import patch

import numpy as np
from mpi4py import MPI

LIMIT_S = 20.0


class Threads:
    """What the ranks of one program share. messages[source, dest] holds arrays with their tags."""

    def __init__(self, size: int):
        self.size = size
        self.messages = defaultdict(Queue)
        self.values = [None] * size
        self.barrier = threading.Barrier(size, timeout=LIMIT_S)


class ThreadComm:
    """One rank's communicator, with the calls that these tests' programs need."""

    def __init__(self, threads: Threads, rank: int):
        self.threads = threads
        self.rank = rank
        self.size = threads.size

    def Dup(self):
        return self

    def Split(self, color):
        assert color == self.rank, "each rank is alone"
        return ThreadComm(Threads(1), 0)

    def Free(self):
        pass

    def Ssend(self, array, dest, tag=0):
        self.threads.messages[self.rank, dest].put((array.copy(), tag))

    Send = Ssend

    def Recv(self, array, source, tag=0, status=None):
        array[:], sent_tag = self.threads.messages[source, self.rank].get(timeout=LIMIT_S)
        if status is not None:
            status.source = source
            status.tag = sent_tag

    def Sendrecv(self, array, dest, sendtag=0, recvbuf=None, source=0, recvtag=0, status=None):
        self.Send(array, dest, sendtag)
        self.Recv(recvbuf, source, recvtag, status)

    def allgather(self, value):
        self.threads.values[self.rank] = value
        self.threads.barrier.wait()
        values = list(self.threads.values)
        self.threads.barrier.wait()
        return values

    def allreduce(self, value):
        return sum(self.allgather(value))

    def Allreduce(self, array, total):
        total[:] = np.sum(self.allgather(array), axis=0)


class World:
    """Takes the place of MPI.COMM_WORLD: the communicator of the thread that asks."""

    own = threading.local()

    def __getattr__(self, name: str):
        return getattr(self.own.comm, name)


def run_on_threads(program, size: int) -> list:
    """What program(comm) returns on each of so many ranks."""
    threads = Threads(size)

    def on_rank(rank):
        World.own.comm = ThreadComm(threads, rank)
        return program(World.own.comm)

    with patch.object(MPI, "COMM_WORLD", World()), ThreadPoolExecutor(size) as pool:
        return list(pool.map(on_rank, range(size)))
