"""Allreduces that 01_mpi_basics times on emulated ranks: the obvious one, through rank 0, and the learner's ring."""

import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI


def through_rank_0(comm, values: np.ndarray) -> np.ndarray:
    """The sum of all ranks' `values` in a new array: rank 0 receives all of them, and sends the sum to each rank.

    All ranks call it, and it blocks. Rank 0 receives and sends p - 1 arrays, and every other rank one of each.
    """
    total = values.copy()
    if comm.rank > 0:
        comm.Send(values, dest=0)
        comm.Recv(total, source=0)
        return total
    for source in range(1, comm.size):
        incoming = np.empty_like(values)
        comm.Recv(incoming, source=source)
        total += incoming
    for dest in range(1, comm.size):
        comm.Send(total, dest=dest)
    return total


def seconds(comm, allreduce: Callable, sizes: list[int]) -> dict[int, float]:
    """Seconds until the last rank has the sum, for arrays of these bytes. All ranks call it, and it blocks."""
    taken_s = {}
    for nbytes in sizes:
        values = np.ones(nbytes // 8)
        comm.Barrier()
        start = time.perf_counter()
        allreduce(comm, values)
        taken_s[nbytes] = comm.allreduce(time.perf_counter() - start, op=MPI.MAX)
    return taken_s
