"""The exercises of 01 accept the solutions, and reject wrong answers with the hint that names the mistake."""

import numpy as np
import pytest
from judge.answers import solution
from judge.verdicts import Verdicts
from mpi4py import MPI

from workshop_lib.lessons.mpi_basics import judge as check

pytestmark = pytest.mark.usefixtures("healthy")

RANKS = 4
SWAP = "comm.Sendrecv(mine, dest=partner, recvbuf=theirs, source=partner)"
TURNS = """if comm.rank < partner: comm.Send(mine, partner)
    comm.Recv(theirs, partner)
    if comm.rank > partner: comm.Send(mine, partner)"""
SEND = "if comm.rank > 0:\n        comm.send(result, dest=0)\n        return None"
RECEIVE = "value = comm.recv(source=MPI.ANY_SOURCE, status=status)"
SENDRECV = "comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)"
OTHER_WAY_ROUND = [
    (SENDRECV, "comm.Sendrecv(outgoing, dest=left, recvbuf=incoming, source=right)"),
    ("(comm.rank - step) % p", "(comm.rank + step) % p"),
    ("(comm.rank - step - 1) % p", "(comm.rank + step + 1) % p"),
]
HALVES = """h = len(outgoing) // 2; g = len(incoming) // 2
        comm.Sendrecv(outgoing[:h], right, recvbuf=incoming[:g], source=left)
        comm.Sendrecv(outgoing[h:], right, recvbuf=incoming[g:], source=left)"""
RING_TURNS = """if comm.rank % 2: comm.Recv(incoming, left)
        comm.Send(outgoing, right)
        if comm.rank % 2 == 0: comm.Recv(incoming, left)"""
EQUAL_CHUNKS = "[total[i * (len(total) // p) : (i + 1) * (len(total) // p)] for i in range(p)]"

WRONG = {
    "exchange": {
        "never received": (
            [(SWAP, "theirs[:] = 0")],
            "has [0. 0. 0. 0.] … where [1000. 1001. 1002. 1003.] … is right. Did you return",
        ),
        "wrong length": (
            [("return theirs", "return theirs[1:]")],
            "returned an array of 5. It should `return` an array of 6",
        ),
        "nothing returned": ([("return theirs", "pass")], "returned nothing. It should"),
        "knows one size only": (
            [(check.MAKE, "theirs = np.empty(1000)"), ("return theirs", "return theirs[:6]")],
            "np.empty_like(mine)",
        ),
        "another type": (
            [("return theirs", "return theirs.astype(np.float32)")],
            "returned float32 where its partner sent",
        ),
        "value by value": (
            [(SWAP, "for at in range(len(mine)): theirs[at] = comm.sendrecv(mine[at], partner, source=partner)")],
            "can go in one",
        ),
    },
    "collect": {
        "the status of another message": (
            [(RECEIVE, "comm.Probe(MPI.ANY_SOURCE, status=status); value = comm.recv(source=MPI.ANY_SOURCE)")],
            "in one order, and",
        ),
        "one receive too few": ([("range(comm.size - 1)", "range(comm.size - 2)")], "waits in line"),
        "the own result last": ([("return results", "return results[1:] + results[:1]")], "where [4, 1, 3] is right"),
        "never waits": ([("comm.send(", "comm.isend(")], "is never waited for"),
        "knows three ranks only": (
            [("[None] * (comm.size - 1)", "[None] * 2"), ("range(comm.size - 1)", "range(2)")],
            "IndexError",
        ),
    },
    "global_mean": {
        "on rank 0 only": (
            [("comm.allreduce", "comm.reduce"), (check.RETURN, f"if comm.rank == 0: {check.RETURN}")],
            "rank 1 returned nothing. `reduce` and `gather` give their result to one rank",
        ),
        "nan for no values": ([("values.sum()", "values.mean() * len(values)")], "The mean of no values"),
        "an array": ([(check.RETURN, "return np.array([total]) / count")], "Take the number out of it"),
        "nothing from a rank without values": (
            [(check.RETURN, f"if len(values): {check.RETURN}")],
            "rank 1 returned nothing",
        ),
        "printed": ([(check.RETURN, "print(total / count)")], "`return` a number: the mean"),
    },
    "ring_allreduce": {
        "the other way round, a step too few": (
            [*OTHER_WAY_ROUND, ("range(2 * (p - 1))", "range(2 * (p - 1) - 1)")],
            "There is a step missing",
        ),
        "values changed before": ([("total = values.copy()", "total = np.roll(values, 1) + 1")], "follow one chunk"),
        "equal chunks only": ([("np.array_split(total, p)", EQUAL_CHUNKS)], "np.array_split"),
        "pickled chunks": (
            [(SENDRECV, "incoming = comm.sendrecv(outgoing, dest=right, source=left)")],
            "Use upper-case calls",
        ),
        "half chunks": ([(SENDRECV, HALVES)], "in one piece"),
        "in turns": ([(SENDRECV, RING_TURNS)], "Sendrecv lets a rank send and receive in the same round"),
        "whole arrays go round": (
            """
            def ring_allreduce(comm, values):
                right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
                total, moving, incoming = values.copy(), values.copy(), np.empty_like(values)
                for step in range(comm.size - 1):
                    comm.Sendrecv(moving, right, recvbuf=incoming, source=left)
                    moving[:] = incoming
                    total += incoming
                return total
            """,
            "whole array in each step",
        ),
        "through rank 0": (
            """
            def ring_allreduce(comm, values):
                total, incoming = values.copy(), np.empty_like(values)
                if comm.rank:
                    comm.Send(values, 0)
                    comm.Recv(total, 0)
                else:
                    for other in range(1, comm.size):
                        comm.Recv(incoming, other)
                        total += incoming
                    for other in range(1, comm.size):
                        comm.Send(total, other)
                return total
            """,
            "Rank 0 does most of the work",
        ),
    },
}
NEVER_ENDS = {
    "ring_allreduce": {
        "every rank sends first": (
            [(SENDRECV, "comm.Send(outgoing, right); comm.Recv(incoming, left)")],
            "when every rank sends first, nobody receives",
            "comm.Send(outgoing, right)",
        )
    },
    "exchange": {
        "both send first": (
            [(SWAP, "comm.Send(mine, partner); comm.Recv(theirs, partner)")],
            "both partners do the same thing first",
        )
    },
    "global_mean": {
        "on rank 0 alone": ([("total =", "if comm.rank: return 0.0\n    total =")], "is it inside an `if`")
    },
}
RAISES = {
    "ring_allreduce": {
        "made ready for the wrong chunk": (
            [("np.empty_like(place)", "np.empty_like(outgoing)")],
            "the size of what arrives",
        ),
        "the library's own": (
            [("total = values.copy()", "total = comm.allreduce(values)")],
            "has no allreduce: build it from Send",
        ),
    }
}


RIGHT = {
    "exchange": {
        "in turns": [(SWAP, TURNS)],
        "waiting for both": [
            (check.MAKE, f"from mpi4py import MPI; {check.MAKE}"),
            (SWAP, "MPI.Request.Waitall([comm.Isend(mine, partner), comm.Irecv(theirs, partner)])"),
        ],
        "of objects without waiting": [
            (SWAP, "request = comm.irecv(source=partner); comm.ssend(mine, partner)"),
            ("return theirs", "return request.wait()"),
        ],
    },
    "collect": {
        "the rank is in the message": """
            def collect(comm, result):
                if comm.rank:
                    return comm.send((comm.rank, result), dest=0)
                pairs = [(0, result)] + [comm.recv() for _ in range(comm.size - 1)]
                return [value for rank, value in sorted(pairs)]
            """,
        "probed first": [
            (RECEIVE, "comm.Probe(MPI.ANY_SOURCE, status=status); value = comm.recv(source=status.source)")
        ],
        "in an array": """
            def collect(comm, result):
                mine, results = np.array([result]), np.full(comm.size, result)
                if comm.rank:
                    return comm.Send(mine, dest=0)
                status = MPI.Status()
                for _ in range(1, comm.size):
                    comm.Recv(mine, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
                    results[status.source] = mine[0]
                return results
            """,
        "the own result by a message, too": [
            (SEND, "request = comm.isend(result, dest=0)"),
            ("range(comm.size - 1)", "range(comm.size if comm.rank == 0 else 0)"),
            ("return results", "request.wait()\n    return results"),
        ],
    },
    "global_mean": {
        "one allreduce of two numbers": """
            def global_mean(comm, values):
                both = np.array([values.sum(), values.size])
                comm.Allreduce(MPI.IN_PLACE, both)
                return both[0] / both[1]
            """,
        "reduced and broadcast": """
            def global_mean(comm, values):
                total, count = comm.reduce(values.sum()), comm.reduce(len(values))
                return comm.bcast(total / count if comm.rank == 0 else None)
            """,
    },
    "ring_allreduce": {
        "the other way round": OTHER_WAY_ROUND,
        "without waiting": [(SENDRECV, "r = comm.Isend(outgoing, right); comm.Recv(incoming, left); r.Wait()")],
        "Irecv first": [(SENDRECV, "r = comm.Irecv(incoming, left); comm.Send(outgoing, right); r.Wait()")],
        "Rabenseifner's": """
            def ring_allreduce(comm, values):
                total = values.copy()
                mine = slice(0, len(values))
                steps = []
                for bit in (2, 1):  # the own half of what is left gets the partner's values
                    middle = (mine.start + mine.stop) // 2
                    halves = slice(mine.start, middle), slice(middle, mine.stop)
                    mine, other = halves if not comm.rank & bit else halves[::-1]
                    incoming = np.empty_like(total[mine])
                    comm.Sendrecv(total[other].copy(), comm.rank ^ bit, recvbuf=incoming, source=comm.rank ^ bit)
                    total[mine] += incoming
                    steps.append((bit, mine, other))
                for bit, mine, other in reversed(steps):  # and back: the finished half for the partner's
                    incoming = np.empty_like(total[other])
                    comm.Sendrecv(total[mine].copy(), comm.rank ^ bit, recvbuf=incoming, source=comm.rank ^ bit)
                    total[other] = incoming
                return total
            """,
    },
}


class TestMpiBasics(Verdicts):
    check, notebook, names = check, check.NOTEBOOK, ["exchange", "collect", "global_mean", "ring_allreduce"]
    right, wrong, never_ends, raises = RIGHT, WRONG, NEVER_ENDS, RAISES


def test_the_solutions_are_right(team):
    def on_rank(ring_allreduce, global_mean):
        comm = MPI.COMM_WORLD.Dup()
        values = np.random.default_rng(comm.rank).random(2 * comm.size + 1)
        total = np.empty_like(values)
        comm.Allreduce(values, total)
        uneven = values[: comm.rank]
        mean = np.concatenate(comm.allgather(uneven)).mean()
        return np.allclose(ring_allreduce(comm, values), total), np.isclose(global_mean(comm, uneven), mean)

    made = [solution(check.NOTEBOOK, name) for name in ("ring_allreduce", "global_mean")]
    assert team.run(on_rank, *made) == [(True, True)] * team.n


def test_after_a_broadcast_of_one_rank_alone_the_others_are_one_behind(team):
    def on_rank():
        comm = MPI.COMM_WORLD.Dup()
        if comm.rank == 0:
            comm.bcast("settings")
        after = comm.bcast("weights" if comm.rank == 0 else None)
        left_over = comm.bcast(None) if comm.rank > 0 else None
        return after, left_over

    assert team.run(on_rank) == [("weights", None)] + [("settings", "weights")] * (team.n - 1)
