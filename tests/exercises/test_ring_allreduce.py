"""The check of ring_allreduce accepts right answers, and says of wrong ones what is wrong."""

import pytest
from exercises.answers import solution, stub, variant, written

from workshop_lib.exercises import mpi_basics as check

NOTEBOOK = "01_mpi_basics"
RANKS = 4
SENDRECV = "comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)"


def ring(*replacements):
    """The solution with these texts replaced."""
    return variant(NOTEBOOK, "ring_allreduce", *replacements)


def own(*lines: str):
    """A function that goes another way."""
    return written("import numpy as np", "ring_allreduce(comm, values)", *lines)


def test_the_solution_passes():
    verdict = check.ring_allreduce(solution(NOTEBOOK, "ring_allreduce"))
    assert verdict.passed, verdict


def test_the_stub_is_not_solved_yet():
    assert check.ring_allreduce(stub(NOTEBOOK, "ring_allreduce")).passed is None


RIGHT = {
    "the other way round": lambda: ring(
        (SENDRECV, "comm.Sendrecv(outgoing, dest=left, recvbuf=incoming, source=right)"),
        ("(comm.rank - step) % p", "(comm.rank + step) % p"),
        ("(comm.rank - step - 1) % p", "(comm.rank + step + 1) % p"),
    ),
    "without waiting": lambda: ring((SENDRECV, "r = comm.Isend(outgoing, right); comm.Recv(incoming, left); r.Wait()")),
    "Isend and Irecv": lambda: ring(
        (
            SENDRECV,
            "requests = comm.Isend(outgoing, right), comm.Irecv(incoming, left)\n"
            "        for request in requests:\n"
            "            request.Wait()",
        )
    ),
    "Irecv first": lambda: ring((SENDRECV, "r = comm.Irecv(incoming, left); comm.Send(outgoing, right); r.Wait()")),
}
WRONG = {
    "whole arrays go round": (
        lambda: own(
            "right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size",
            "total, moving, incoming = values.copy(), values.copy(), np.empty_like(values)",
            "for step in range(comm.size - 1):",
            "    comm.Sendrecv(moving, right, recvbuf=incoming, source=left)",
            "    moving[:] = incoming",
            "    total += incoming",
            "return total",
        ),
        "whole array in each step",
    ),
    "through rank 0": (
        lambda: own(
            "total, incoming = values.copy(), np.empty_like(values)",
            "if comm.rank:",
            "    comm.Send(values, 0); comm.Recv(total, 0)",
            "else:",
            "    for other in range(1, comm.size):",
            "        comm.Recv(incoming, other); total += incoming",
            "    for other in range(1, comm.size):",
            "        comm.Send(total, other)",
            "return total",
        ),
        "Rank 0 does most of the work",
    ),
    "added in both phases": (lambda: ring(("place[:] = incoming", "place += incoming")), "replaces what is there"),
    "replaced in both phases": (
        lambda: ring(("place += incoming", "place[:] = incoming")),
        "before what arrived was added",
    ),
    "no second phase": (lambda: ring(("range(2 * (p - 1))", "range(p - 1)")), "Pass the finished chunks round"),
    "a step too few": (lambda: ring(("range(2 * (p - 1))", "range(2 * (p - 1) - 1)")), "is a step missing"),
    "phases change a step late": (lambda: ring(("step < p - 1", "step < p")), "replaces what is there"),
    "phases change a step early": (lambda: ring(("step < p - 1", "step < p - 2")), "before what arrived was added"),
    "the same chunk in each step": (
        lambda: ring(("(comm.rank - step) % p", "comm.rank"), ("(comm.rank - step - 1) % p", "(comm.rank - 1) % p")),
        "holds rank",
    ),
    "added into the wrong chunk": (
        lambda: ring(("(comm.rank - step - 1) % p", "(comm.rank - step) % p")),
        "holds rank",
    ),
    "in the array it was given": (
        lambda: ring(("total = values.copy()", "total = values")),
        "begin with `total = values.copy()`",
    ),
    "the mean": (lambda: ring(("return total", "return total / p")), "without dividing"),
    "equal chunks only": (
        lambda: ring(
            (
                "np.array_split(total, p)",
                "[total[i * (len(total) // p) : (i + 1) * (len(total) // p)] for i in range(p)]",
            )
        ),
        "np.array_split",
    ),
    "returns values": (lambda: ring(("return total", "return values")), "returned its own values"),
    "returns nothing": (lambda: ring(("return total", "pass")), "`return` it"),
    "pickled chunks": (
        lambda: ring((SENDRECV, "incoming = comm.sendrecv(outgoing, dest=right, source=left)")),
        "use the upper-case calls",
    ),
    "made ready for the wrong chunk": (
        lambda: ring(("np.empty_like(place)", "np.empty_like(outgoing)")),
        "the size of what arrives",
    ),
    "half chunks": (
        lambda: ring(
            (
                SENDRECV,
                "h = len(outgoing) // 2; g = len(incoming) // 2\n"
                "        comm.Sendrecv(outgoing[:h], right, recvbuf=incoming[:g], source=left)\n"
                "        comm.Sendrecv(outgoing[h:], right, recvbuf=incoming[g:], source=left)",
            )
        ),
        "in one piece",
    ),
    "in turns": (
        lambda: ring(
            (
                SENDRECV,
                "first, then = (comm.Send, comm.Recv) if comm.rank % 2 == 0 else (comm.Recv, comm.Send)\n"
                "        ends = {comm.Send: (outgoing, right), comm.Recv: (incoming, left)}\n"
                "        first(*ends[first])\n"
                "        then(*ends[then])",
            )
        ),
        "Sendrecv lets a rank send and receive in the same round",
    ),
}
NEVER_ENDS = {
    "every rank sends first": (
        lambda: ring((SENDRECV, "comm.Send(outgoing, right); comm.Recv(incoming, left)")),
        "when every rank sends first, nobody receives",
    )
}


@pytest.mark.parametrize("way", RIGHT)
def test_another_right_way_passes(way):
    verdict = check.ring_allreduce(RIGHT[way]())
    assert verdict.passed, verdict


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_answer_is_rejected_with_its_hint(mistake):
    answer, hint = WRONG[mistake]
    verdict = check.ring_allreduce(answer())
    assert verdict.passed is False, verdict
    assert hint.lower() in verdict.hint.lower(), verdict


@pytest.mark.parametrize("mistake", NEVER_ENDS)
def test_an_answer_that_never_ends_is_stopped_and_the_hint_says_why(mistake, team):
    answer, hint = NEVER_ENDS[mistake]
    verdict = check.ring_allreduce(answer())
    assert verdict.passed is False, verdict
    assert verdict.failed.count("comm.Send(outgoing, right)") == 4, "each rank's line is told"
    assert hint.lower() in verdict.hint.lower(), verdict
    assert team.healthy, "fresh ranks are there for the next cell"


def test_the_library_s_own_allreduce_is_refused_with_what_there_is():
    verdict = check.ring_allreduce(
        own("total = np.empty_like(values)", "comm.Allreduce(values, total)", "return total")
    )
    assert verdict.passed is False
    assert "has no Allreduce: build it from Send" in verdict.failed
