"""The checks of exchange and global_mean accept right answers, and say of wrong ones what is wrong."""

import pytest
from exercises.answers import solution, written
from exercises.verdicts import Solutions

from workshop_lib import ranks
from workshop_lib.exercises import mpi_basics as check

NOTEBOOK = "01_mpi_basics"
RANKS = 4
NAMES = ["exchange", "global_mean"]


def function(head: str, *lines: str):
    """A learner's function with this head and these lines."""
    return written("import numpy as np\nfrom mpi4py import MPI", head, *lines)


class TestSolutions(Solutions):
    check, notebook, names = check, NOTEBOOK, NAMES


EXCHANGE, MEAN = "exchange(comm, mine)", "global_mean(comm, values)"
PARTNER = "partner, theirs = comm.rank ^ 1, np.empty_like(mine)"
SWAP = "comm.Sendrecv(mine, partner, recvbuf=theirs, source=partner)"

RIGHT = {
    "exchange, in turns": (
        check.exchange,
        lambda: function(
            EXCHANGE,
            PARTNER,
            "if comm.rank < partner:",
            "    comm.Send(mine, partner); comm.Recv(theirs, partner)",
            "else:",
            "    comm.Recv(theirs, partner); comm.Send(mine, partner)",
            "return theirs",
        ),
    ),
    "exchange, without waiting": (
        check.exchange,
        lambda: function(
            EXCHANGE,
            PARTNER,
            "request = comm.Isend(mine, partner)",
            "comm.Recv(theirs, partner)",
            "request.Wait()",
            "return theirs",
        ),
    ),
    "exchange, waiting for both": (
        check.exchange,
        lambda: function(
            EXCHANGE,
            PARTNER,
            "requests = [comm.Isend(mine, partner), comm.Irecv(theirs, partner)]",
            "MPI.Request.Waitall(requests)",
            "return theirs",
        ),
    ),
    "exchange, of objects without waiting": (
        check.exchange,
        lambda: function(
            EXCHANGE,
            PARTNER,
            "request = comm.irecv(source=partner)",
            "comm.ssend(mine, partner)",
            "return request.wait()",
        ),
    ),  # fmt: skip
    "exchange, of objects": (
        check.exchange,
        lambda: function(EXCHANGE, "return comm.sendrecv(mine, comm.rank ^ 1, source=comm.rank ^ 1)"),
    ),
    "mean, one allreduce of two numbers": (
        check.global_mean,
        lambda: function(
            MEAN,
            "both = np.array([values.sum(), values.size])",
            "comm.Allreduce(MPI.IN_PLACE, both)",
            "return both[0] / both[1]",
        ),
    ),
    "mean, reduced and broadcast": (
        check.global_mean,
        lambda: function(
            MEAN,
            "total, count = comm.reduce(values.sum()), comm.reduce(len(values))",
            "return comm.bcast(total / count if comm.rank == 0 else None)",
        ),
    ),
}


@pytest.mark.parametrize("way", RIGHT)
def test_another_right_way_passes(way):
    judge, answer = RIGHT[way]
    verdict = judge(answer())
    assert verdict.passed, verdict


WRONG = {
    # exchange
    "returns its own": (
        check.exchange,
        lambda: function(EXCHANGE, PARTNER, SWAP, "return mine"),
        "returned its own values",
    ),
    "never received": (
        check.exchange,
        lambda: function(EXCHANGE, "return np.zeros_like(mine)"),
        "returned [0. 0. 0. 0.] … where its partner sent [1000. 1001. 1002. 1003.] …",
    ),
    "never waited for": (
        check.exchange,
        lambda: function(
            EXCHANGE, "theirs = np.full_like(mine, 5e-324)", "comm.Irecv(theirs, comm.rank ^ 1)", "return theirs"
        ),
        "had the receive ended",
    ),
    "wrong length": (
        check.exchange,
        lambda: function(EXCHANGE, PARTNER, SWAP, "return theirs[1:]"),
        "returned float64 of shape (5,), its partner sent float64 of shape (6,)",
    ),
    "nothing returned": (check.exchange, lambda: function(EXCHANGE, PARTNER, SWAP), "`return` it"),
    "knows one size only": (
        check.exchange,
        lambda: function(EXCHANGE, "partner, theirs = comm.rank ^ 1, np.empty(1000)", SWAP, "return theirs[:6]"),
        "np.empty_like(mine)",
    ),
    "received into mine": (
        check.exchange,
        lambda: function(
            EXCHANGE,
            "partner, copy = comm.rank ^ 1, mine.copy()",
            "comm.Sendrecv(copy, partner, recvbuf=mine, source=partner)",
            "return mine",
        ),
        "has overwritten it",
    ),
    "the neighbour, not the partner": (
        check.exchange,
        lambda: function(
            EXCHANGE,
            "right, left, theirs = (comm.rank + 1) % 4, (comm.rank - 1) % 4, np.empty_like(mine)",
            "comm.Sendrecv(mine, right, recvbuf=theirs, source=left)",
            "return theirs",
        ),
        "its partner is rank",
    ),
    "value by value": (
        check.exchange,
        lambda: function(
            EXCHANGE,
            PARTNER,
            "for i in range(len(mine)):",
            "    comm.Sendrecv(mine[i:i+1], partner, recvbuf=theirs[i:i+1], source=partner)",
            "return theirs",
        ),
        "can go in one",
    ),
    # global_mean
    "mean of means": (
        check.global_mean,
        lambda: function(MEAN, "return comm.allreduce(values.mean()) / comm.size"),
        "the mean of the ranks' means",
    ),
    "sum of means": (
        check.global_mean,
        lambda: function(MEAN, "return comm.allreduce(values.mean())"),
        "the sum of the ranks' means",
    ),
    "sum": (
        check.global_mean,
        lambda: function(MEAN, "return comm.allreduce(values.sum())"),
        "divide by how many there are",
    ),
    "divided by the ranks": (
        check.global_mean,
        lambda: function(MEAN, "return comm.allreduce(values.sum()) / comm.size"),
        "divided by the number of ranks",
    ),
    "divided by its own count": (
        check.global_mean,
        lambda: function(MEAN, "return comm.allreduce(values.sum()) / max(1, len(values))"),
        "add up the counts as well",
    ),
    "its own mean": (check.global_mean, lambda: function(MEAN, "return values.mean()"), "this rank's own values"),
    "on rank 0 only": (
        check.global_mean,
        lambda: function(
            MEAN,
            "total, count = comm.reduce(values.sum()), comm.reduce(len(values))",
            "if comm.rank == 0:",
            "    return total / count",
        ),
        "`allreduce` gives it to all",
    ),
    "nan for no values": (
        check.global_mean,
        lambda: function(
            MEAN,
            "weighted = comm.allreduce(values.mean() * len(values))",
            "return weighted / comm.allreduce(len(values))",
        ),
        "mean of no values",
    ),
    "an array": (
        check.global_mean,
        lambda: function(
            MEAN,
            "both = np.array([values.sum(), values.size])",
            "comm.Allreduce(MPI.IN_PLACE, both)",
            "return both[:1] / both[1:]",
        ),
        "take the number out of it",
    ),
    "nothing from a rank without values": (
        check.global_mean,
        lambda: function(
            MEAN,
            "mean = comm.allreduce(values.sum()) / comm.allreduce(len(values))",
            "return mean if len(values) else None",
        ),
        "rank 1 returned None",
    ),
    "prints the mean": (check.global_mean, lambda: function(MEAN, "print(values.mean())"), "`return` it"),
}
NEVER_ENDS = {
    "both send first": (
        check.exchange,
        lambda: function(EXCHANGE, PARTNER, "comm.Send(mine, partner)", "comm.Recv(theirs, partner)", "return theirs"),
        "both partners do the same thing first",
    ),
    "both receive first": (
        check.exchange,
        lambda: function(EXCHANGE, PARTNER, "comm.Recv(theirs, partner)", "comm.Send(mine, partner)", "return theirs"),
        "both partners do the same thing first",
    ),
    "a collective on rank 0 alone": (
        check.global_mean,
        lambda: function(
            MEAN,
            "if comm.rank == 0:",
            "    return comm.allreduce(values.sum()) / comm.allreduce(len(values))",
            "return 0.0",
        ),
        "is it inside an `if`",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_answer_is_rejected_with_its_hint(mistake):
    judge, answer, hint = WRONG[mistake]
    verdict = judge(answer())
    assert verdict.passed is False, verdict
    assert hint.lower() in verdict.hint.lower(), verdict


@pytest.mark.parametrize("mistake", NEVER_ENDS)
def test_an_answer_that_never_ends_is_stopped_and_the_hint_says_why(mistake, team):
    judge, answer, hint = NEVER_ENDS[mistake]
    verdict = judge(answer())
    assert verdict.passed is False, verdict
    assert "is at" in verdict.failed, "it says on which line the ranks wait"
    assert hint.lower() in verdict.hint.lower(), verdict
    assert team.healthy, "fresh ranks are there for the next cell"


def test_it_is_the_learners_function_that_runs_on_every_rank(team):
    team.push(seen=0)
    spy = function(MEAN, "import __ranks__; __ranks__.seen += 10 + comm.rank", "return values.mean()")
    check.global_mean(spy)
    assert team.pull("seen") == [10, 11, 12, 13], "once on each rank, as itself"


def test_another_number_of_ranks_is_refused(team):
    try:
        ranks.start(2)
        verdict = check.exchange(solution(NOTEBOOK, "exchange"))
        assert verdict.passed is False
        assert "needs 4 ranks, not 2" in verdict.failed
    finally:
        ranks.start(4)
