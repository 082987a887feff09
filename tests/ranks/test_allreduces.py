"""The hand-written allreduces on 1 to 9 ranks: values, bytes, messages and rounds, as documented."""

import json
from pathlib import Path

import pytest
from launching import run_script

from workshop_lib.comm.allreduce import ALGORITHMS

RANKS, ITEM_BYTES = 9, 8


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """{(algorithm, ranks, elements): (facts by rank, rounds)}"""
    file = tmp_path_factory.mktemp("allreduces") / "facts.json"
    run_script(RANKS, Path(__file__).with_name("allreduces.py"), file, timeout_s=120)
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


FORMULAS = {
    "naive": naive, "recursive doubling": recursive_doubling, "ring": ring, "rabenseifner": rabenseifner,
}  # fmt: skip


def test_every_algorithm_has_a_formula():
    assert list(FORMULAS) == list(ALGORITHMS)


@pytest.mark.parametrize("p", range(1, RANKS + 1))
@pytest.mark.parametrize("algorithm", FORMULAS)
def test_value_bytes_messages_and_rounds(facts, algorithm, p):
    for n in (2520, 37, 3):
        by_rank, rounds = facts[algorithm, p, n]
        assert len(by_rank) == p
        for rank, found in enumerate(by_rank):
            assert found["exact"], f"rank {rank} of {p}, {n} values: the sum is wrong"
            assert found["near"]
            assert found["bits"] == by_rank[0]["bits"], "all ranks hold the same, to the last bit"
            elements, messages = FORMULAS[algorithm](n, p, rank)
            assert (found["bytes"], found["messages"]) == (ITEM_BYTES * elements, messages), (rank, n)
        assert rounds == rounds_of(algorithm, p), n


@pytest.mark.parametrize("p", [2, 4, 8])
def test_with_equal_parts_the_formulas_are_the_published_ones(facts, p):
    n = 2520
    for algorithm, parts, messages in (("ring", p, 2 * (p - 1)), ("rabenseifner", p, 2 * (p.bit_length() - 1))):
        for found in facts[algorithm, p, n][0]:
            assert found["bytes"] == 2 * (parts - 1) * ITEM_BYTES * n // parts
            assert found["messages"] == messages
