"""The hand-written allreduces on 1 to 9 ranks: values, and the bytes, messages and rounds of their table."""

import math

import numpy as np
import pytest
from thread_ranks import run_on_threads

from workshop_lib.collectives.counting import CountingComm, rounds
from workshop_lib.lessons.forecasting.allreduce import algorithms
from workshop_lib.machine.cost_model import allreduce_s

ITEM_BYTES = 8
DIVIDES = 2520  # values, which 1 to 9 ranks divide into equal parts
CASES = [(algorithm, p) for p in range(1, 10) for algorithm in algorithms(p)]


def busiest(algorithm: str, p: int) -> tuple[float, float]:
    """The messages of the busiest rank, and the bytes it sends in units of the array."""
    return {
        "naive": (p - 1, p - 1),
        "recursive doubling": (math.log2(p), math.log2(p)),
        "ring": (2 * (p - 1), 2 * (p - 1) / p),
        "rabenseifner": (2 * math.log2(p), 2 * (p - 1) / p),
    }[algorithm]


@pytest.mark.parametrize(("algorithm", "p"), CASES)
@pytest.mark.parametrize("n", [DIVIDES, 37, 3], ids=["divides", "does not divide", "fewer values than ranks"])
def test_value_bytes_messages_and_rounds(algorithm, p, n):
    allreduce = algorithms(p)[algorithm]

    def program(comm):
        counting = CountingComm(comm)
        exact = (100 ** (comm.rank % 4) * (1 + np.arange(n))).astype(np.int64)
        allreduce(counting, exact)
        rounded = np.random.default_rng(comm.rank).random(n, dtype=np.float32)
        allreduce(comm, rounded)
        return exact, rounded, counting

    by_rank = run_on_threads(program, p)
    total = sum(100 ** (rank % 4) for rank in range(p)) * (1 + np.arange(n))
    near = sum(np.random.default_rng(rank).random(n, dtype=np.float32).astype(float) for rank in range(p))
    for exact, rounded, _ in by_rank:
        assert np.array_equal(exact, total)
        assert np.allclose(rounded, near, rtol=1e-5)
        assert np.array_equal(rounded, by_rank[0][1]), "all ranks hold the same, to the last bit"
    counted = [counting for *_, counting in by_rank]
    messages, arrays = busiest(algorithm, p)
    assert max(each.messages_sent for each in counted) == messages
    assert rounds([each.log for each in counted]) == allreduce_s(algorithm, p, 0, latency_s=1, s_per_byte=0)
    if n == DIVIDES:
        assert max(each.bytes_sent for each in counted) == pytest.approx(arrays * n * ITEM_BYTES)
