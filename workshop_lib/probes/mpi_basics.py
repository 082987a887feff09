"""Rank side of the exercises in 01_mpi_basics.

Each case has a communicator of its own, so that a message which one case leaves unreceived is never taken for
one of the next. Cases come one at a time, the easy ones first, and end with the first whose value is wrong on
some rank: a later one might then fail in a way that says less.
"""

import numpy as np

from workshop_lib.comm.counting import CountingComm, rounds
from workshop_lib.probes.compare import close

ORIGIN = 100  # rank r puts ORIGIN**r into a sum: its digits then say how often each rank was added


def exchange(comm, function) -> dict[str, dict]:
    """Two swaps between partners, of different length and type."""
    cases = {"floats": (6, np.float64), "integers": (1000, np.int32)}
    return _while_right(comm, cases, lambda case: _swap(comm, function, *case))


def _swap(comm, function, length: int, dtype) -> dict:
    counting = CountingComm(comm.Dup())
    given = (1000 * comm.rank + np.arange(length)).astype(dtype)
    mine = given.copy()
    returned = function(counting, mine)
    return {
        "returned": returned,
        "own": given,
        "right": comm.allgather(given)[comm.rank ^ 1],
        "unchanged": np.array_equal(mine, given),
        "messages": counting.messages_sent,
    }


def global_mean(comm, function) -> dict[str, dict]:
    """Two means: every rank with a different number of values, and rank 1 with none at all."""
    lengths = {"uneven": comm.rank + 2, "none": 0 if comm.rank == 1 else 3}
    return _while_right(comm, lengths, lambda length: _mean(comm, function, length))


def _mean(comm, function, length: int) -> dict:
    values = 10.0 * comm.rank**2 + np.arange(length)
    of_ranks = comm.allgather(values)
    returned = function(comm.Dup(), values.copy())
    return {"returned": returned, "of_ranks": of_ranks, "right": np.concatenate(of_ranks).mean()}


def ring_allreduce(comm, function) -> dict[str, dict]:
    """Four sums of arrays: one that tells whose values went into it, one that divides into equal chunks, one
    that does not, and one with fewer values than ranks.
    """
    random = np.random.default_rng(comm.rank)
    arrays = {
        "origin": np.full(2 * comm.size, float(ORIGIN**comm.rank)),
        "equal": random.random(1000 * comm.size),
        "uneven": random.random(2 * comm.size + comm.size // 2),
        "few": random.random(comm.size - 1),
    }
    return _while_right(comm, arrays, lambda given: _sum(comm, function, given))


def _sum(comm, function, given: np.ndarray) -> dict:
    counting = CountingComm(comm.Dup())
    values = given.copy()
    returned = function(counting, values)
    right = np.empty_like(given)
    comm.Allreduce(given, right)
    return {
        "returned": returned,
        "own": given,
        "right": right,
        "unchanged": np.array_equal(values, given),
        "bytes": counting.bytes_sent,
        "messages": counting.messages_sent,
        "rounds": rounds(comm.allgather(counting.log)),
    }


def _while_right(comm, cases: dict, run) -> dict[str, dict]:
    """What `run` says of each case, up to the first whose value is wrong on some rank."""
    found = {}
    for name, case in cases.items():
        found[name] = run(case)
        if not all(comm.allgather(close(found[name]["returned"], found[name]["right"]))):
            break
    return found
