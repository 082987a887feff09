"""The hand-written allreduces on 1 to 9 ranks: values, bytes, messages and rounds, as documented."""

import json
from pathlib import Path

import pytest
from training.launching import run_script

from workshop_lib.lessons.forecasting.allreduce import ALGORITHMS

pytestmark = pytest.mark.full

ITEM_BYTES = 8


@pytest.fixture(scope="module", params=[5, pytest.param(9, marks=pytest.mark.exhaustive)])
def outcomes(request, tmp_path_factory):
    """{(algorithm, ranks, elements): (outcomes by rank, rounds)} on 1, 2, ... ranks; five are the fewest with
    both kinds of ranks beside a power of two that takes more than one step."""
    file = tmp_path_factory.mktemp("allreduces") / "outcomes.json"
    run_script(request.param, Path(__file__).with_name("allreduces.py"), file, timeout_s=120)
    return {(name, p, n): (by_rank, rounds) for name, p, n, by_rank, rounds in json.loads(file.read_text())}


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
def test_value_bytes_messages_and_rounds(outcomes, algorithm):
    for (name, p, n), (by_rank, rounds) in outcomes.items():
        if name != algorithm:
            continue
        assert len(by_rank) == p
        for rank, of_rank in enumerate(by_rank):
            assert of_rank["exact"], f"rank {rank} of {p}, {n} values: the sum is wrong"
            assert of_rank["near"]
            assert of_rank["bits"] == by_rank[0]["bits"], "all ranks hold the same, to the last bit"
            elements, messages = FORMULAS[algorithm](n, p, rank)
            assert (of_rank["bytes"], of_rank["messages"]) == (ITEM_BYTES * elements, messages), (rank, p, n)
        assert rounds == rounds_of(algorithm, p), (p, n)


def test_with_equal_parts_the_formulas_are_the_published_ones(outcomes):
    n = 2520
    for p in (2, 4, 8):
        for algorithm, messages in (("ring", 2 * (p - 1)), ("rabenseifner", 2 * (p.bit_length() - 1))):
            for of_rank in outcomes.get((algorithm, p, n), [[]])[0]:
                assert of_rank["bytes"] == 2 * (p - 1) * ITEM_BYTES * n // p
                assert of_rank["messages"] == messages
    assert ("ring", 4, n) in outcomes
