"""The hand-written allreduces on 1 to 9 ranks: values, bytes, messages and rounds, as documented."""

import numpy as np
import pytest
from fake_mpi_ranks import run_on_threads

from workshop_lib.collectives.counting import CountingComm, rounds
from workshop_lib.lessons.forecasting.allreduce import ALGORITHMS

ITEM_BYTES = 8


def cut(n: int, parts: int) -> list[int]:
    """Elements in each of so many parts."""
    return [n * (i + 1) // parts - n * i // parts for i in range(parts)]


def naive(n: int, p: int, rank: int) -> tuple[int, int]:
    """Elements and messages that `rank` of `p` sends."""
    return (n * (p - 1), p - 1) if rank == 0 else (n, 1)


def ring(n: int, p: int, rank: int) -> tuple[int, int]:
    part = cut(n, p)
    return 2 * n - part[rank] - part[(rank + 1) % p], 2 * (p - 1)


def recursive_doubling(n: int, p: int, rank: int) -> tuple[int, int]:
    return with_helpers(n, p, rank, lambda q, log2: (log2 * n, log2))


def rabenseifner(n: int, p: int, rank: int) -> tuple[int, int]:
    def core(q: int, log2: int) -> tuple[int, int]:
        part = cut(n, q)

        def block(of: int, width: int) -> int:
            return sum(part[of // width * width :][:width])

        widths = [2**k for k in range(log2)]
        return sum(block(rank ^ width, width) + block(rank, width) for width in widths), 2 * log2

    return with_helpers(n, p, rank, core)


def with_helpers(n: int, p: int, rank: int, core) -> tuple[int, int]:
    log2 = p.bit_length() - 1
    q = 2**log2
    if rank >= q:
        return n, 1
    helps = rank + q < p
    elements, messages = core(q, log2)
    return elements + n * helps, messages + helps


def rounds_of(algorithm: str, p: int) -> int:
    if algorithm in ("naive", "ring"):
        return 2 * (p - 1)
    log2 = p.bit_length() - 1
    return log2 * (2 if algorithm == "rabenseifner" else 1) + (0 if p == 2**log2 else 2)


FORMULAS = {"naive": naive, "recursive doubling": recursive_doubling, "ring": ring, "rabenseifner": rabenseifner}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("p", range(1, 10))
@pytest.mark.parametrize("n", [2520, 37, 3], ids=["divides", "does not divide", "fewer values than ranks"])
def test_value_bytes_messages_and_rounds(algorithm, p, n):
    def program(comm):
        counting = CountingComm(comm)
        exact = (100 ** (comm.rank % 4) * (1 + np.arange(n))).astype(np.int64)
        ALGORITHMS[algorithm](counting, exact)
        rounded = np.random.default_rng(comm.rank).random(n, dtype=np.float32)
        ALGORITHMS[algorithm](comm, rounded)
        return exact, rounded, counting

    by_rank = run_on_threads(program, p)
    total = sum(100 ** (rank % 4) for rank in range(p)) * (1 + np.arange(n))
    near = sum(np.random.default_rng(rank).random(n, dtype=np.float32).astype(float) for rank in range(p))
    for rank, (exact, rounded, counting) in enumerate(by_rank):
        assert np.array_equal(exact, total)
        assert np.allclose(rounded, near, rtol=1e-5)
        assert np.array_equal(rounded, by_rank[0][1]), "all ranks hold the same, to the last bit"
        elements, messages = FORMULAS[algorithm](n, p, rank)
        assert (counting.bytes_sent, counting.messages_sent) == (ITEM_BYTES * elements, messages)
    assert rounds([counting.log for *_, counting in by_rank]) == rounds_of(algorithm, p)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_with_equal_parts_the_formulas_are_the_published_ones(p):
    n = 2520
    assert {ring(n, p, rank) for rank in range(p)} == {(2 * (p - 1) * n // p, 2 * (p - 1))}
    assert {rabenseifner(n, p, rank) for rank in range(p)} == {(2 * (p - 1) * n // p, 2 * (p.bit_length() - 1))}
