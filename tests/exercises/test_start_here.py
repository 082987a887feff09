"""The checks of 00_start_here accept the solutions and say of wrong answers what is wrong."""

import pytest
from exercises.answers import variant, written
from exercises.verdicts import Solutions

from workshop_lib.exercises import start_here as check

NOTEBOOK = "00_start_here"


class TestSolutions(Solutions):
    check, notebook, names = check, NOTEBOOK, ("whoami", "my_part")


def whoami(body: str):
    return written("from mpi4py import MPI", "whoami(comm)", body)


def my_part(*lines: str):
    return written("", "my_part(n, rank, size)", *lines)


WRONG_WHOAMI = {
    "size first": ("return comm.size, comm.rank", "rank comes first"),
    "counts from 1": ("return comm.rank + 1, comm.size", "counted from 0"),
    "prints": ("print(comm.rank, comm.size)", "no `return`"),
    "text": ("return f'rank {comm.rank} of {comm.size}'", "two numbers"),
    "always the world": ("return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size", "not from COMM_WORLD"),
    "size by heart": ("return comm.rank, 2", "not by heart"),
}
WRONG_PARTS = {
    "drops the rest": (["each = n // size", "return rank * each, rank * each + each"], "leave `n % size` over"),
    "last takes the rest": (
        ["each = n // size", "return rank * each, n if rank == size - 1 else rank * each + each"],
        "last rank takes all that is left over",
    ),
    "rounds up": (
        ["each = -(-n // size)", "return min(n, rank * each), min(n, rank * each + each)"],
        "at most one larger than the smallest",
    ),
    "stop included": (["return n * rank // size, n * (rank + 1) // size - 1"], "nobody takes"),
    "stop included, equal parts": (
        ["each = n // size", "return rank * each, rank * each + each - 1"],
        "does *not* take",
    ),
    "overlaps": (["return max(0, n * rank // size - 1), n * (rank + 1) // size"], "more than one rank"),
    "all of it": (["return 0, n"], "more than one rank"),
    "fractions": (["return n * rank / size, n * (rank + 1) / size"], "`//` divides"),
    "past the end": (["each = -(-n // size)", "return rank * each, rank * each + each"], "numbered from 0"),
    "prints": (["print(n * rank // size)"], "no `return`"),
    "how many, not which": (["return n // size + (rank < n % size)"], "it returned"),
}


@pytest.mark.parametrize("mistake", WRONG_WHOAMI)
def test_wrong_whoami_is_rejected_with_its_hint(mistake):
    body, hint = WRONG_WHOAMI[mistake]
    verdict = check.whoami(whoami(body))
    assert verdict.passed is False, verdict
    assert hint.lower() in verdict.hint.lower(), verdict


@pytest.mark.parametrize("mistake", WRONG_PARTS)
def test_wrong_my_part_is_rejected_with_its_hint(mistake):
    lines, hint = WRONG_PARTS[mistake]
    verdict = check.my_part(my_part(*lines))
    assert verdict.passed is False, verdict
    assert hint.lower() in verdict.hint.lower(), verdict


def test_any_fair_way_of_sharing_passes():
    fair = my_part(
        "each, over = divmod(n, size)",
        "start = rank * each + min(rank, over)",
        "return start, start + each + (rank < over)",
    )
    assert check.my_part(fair).passed
    assert check.my_part(variant(NOTEBOOK, "my_part", ("def my_part", "\n\ndef my_part"))).passed


def test_it_is_the_learners_function_that_runs_on_every_rank(team):
    spy = "print('called on', comm.rank); return comm.rank, comm.size"
    lines = []
    team.view, plain = lambda n: Notes(n, lines), team.view
    try:
        assert check.whoami(whoami(spy)).passed
    finally:
        team.view = plain
    assert {"[0] called on 0", "[1] called on 1"} <= set(lines)


class Notes:
    """A view that keeps what the ranks print."""

    stop_requested = False

    def __init__(self, n: int, lines: list[str]):
        self.lines = lines

    def output(self, lines: list[str]) -> None:
        self.lines += lines

    def update(self, data, elapsed_s, running) -> None:
        pass

    def close(self) -> None:
        pass


def test_an_endless_loop_ends_at_the_checks_limit(team):
    verdict = check.my_part(my_part("while True:", "    pass"))
    assert verdict.passed is False
    assert "not finished after 5 s" in verdict.failed
    assert team.healthy, "fresh ranks are there for the next cell"


def test_an_error_is_told_with_its_line():
    verdict = check.whoami(whoami("return comm.number, comm.size"))
    assert verdict.passed is False
    assert "has no attribute 'number'" in verdict.failed
    assert "return comm.number" in verdict.failed
