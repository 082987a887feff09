"""The handwritten ring gives every rank the sum, whatever the length, and sends what its docstring says."""

import numpy as np
import pytest
from thread_ranks import run_on_threads

from workshop_lib.training.collectives import ring
from workshop_lib.training.collectives.counting import CountingComm, rounds

DIVIDES = 120  # values, which 1 to 5 ranks divide into equal parts


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("n", [DIVIDES, 37, 3], ids=["divides", "does not divide", "fewer values than ranks"])
def test_values_bytes_messages_and_rounds(p, n):
    def program(comm):
        counting = CountingComm(comm)
        exact = 100**comm.rank * (1 + np.arange(n))
        ring.allreduce(counting, exact)
        rounded = np.random.default_rng(comm.rank).random(n, dtype=np.float32)
        ring.allreduce(comm, rounded)
        return exact, rounded, counting

    by_rank = run_on_threads(program, p)
    for exact, rounded, counting in by_rank:
        assert np.array_equal(exact, sum(100**rank for rank in range(p)) * (1 + np.arange(n)))
        assert np.array_equal(rounded, by_rank[0][1]), "all ranks hold the same, to the last bit"
        assert counting.messages_sent == 2 * (p - 1)
        assert n != DIVIDES or counting.bytes_sent == 2 * (p - 1) * 8 * n // p
    assert rounds([counting.log for *_, counting in by_rank]) == 2 * (p - 1)
