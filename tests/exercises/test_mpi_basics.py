"""The exercises of 01 accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from exercises.answers import variant, written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import mpi_basics as check

NOTEBOOK = "01_mpi_basics"
RANKS = 4
IMPORTS = "import numpy as np\nfrom mpi4py import MPI"
exchange = partial(written, IMPORTS, "exchange(comm, mine)", "partner, theirs = comm.rank ^ 1, np.empty_like(mine)")
collect = partial(written, IMPORTS, "collect(comm, result)")
SENDS = ("if comm.rank:", "    comm.send(result, dest=0)", "    return None", "status = MPI.Status()")
mean = partial(written, IMPORTS, "global_mean(comm, values)")
ring = partial(variant, NOTEBOOK, "ring_allreduce")  # the solution with texts replaced
own_ring = partial(written, IMPORTS, "ring_allreduce(comm, values)")

SWAP = "comm.Sendrecv(mine, partner, recvbuf=theirs, source=partner)"
SENDRECV = "comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)"
OTHER_WAY_ROUND = [
    (SENDRECV, "comm.Sendrecv(outgoing, dest=left, recvbuf=incoming, source=right)"),
    ("(comm.rank - step) % p", "(comm.rank + step) % p"),
    ("(comm.rank - step - 1) % p", "(comm.rank + step + 1) % p"),
]


class TestMpiBasics(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["exchange", "collect", "global_mean", "ring_allreduce"]
    right = {
        "exchange, in turns": lambda: exchange(
            "if comm.rank < partner:",
            "    comm.Send(mine, partner); comm.Recv(theirs, partner)",
            "else:",
            "    comm.Recv(theirs, partner); comm.Send(mine, partner)",
            "return theirs",
        ),
        "exchange, waiting for both": lambda: exchange(
            "requests = [comm.Isend(mine, partner), comm.Irecv(theirs, partner)]",
            "MPI.Request.Waitall(requests)",
            "return theirs",
        ),
        "exchange, of objects without waiting": lambda: exchange(
            "request = comm.irecv(source=partner)", "comm.ssend(mine, partner)", "return request.wait()"
        ),
        "collect, the rank is in the message": lambda: collect(
            "if comm.rank:",
            "    return comm.send((comm.rank, result), dest=0)",
            "pairs = [(0, result)] + [comm.recv() for _ in range(comm.size - 1)]",
            "return [value for rank, value in sorted(pairs)]",
        ),
        "collect, probed first": lambda: collect(
            *SENDS,
            "results = [result] * comm.size",
            "for _ in range(1, comm.size):",
            "    comm.Probe(MPI.ANY_SOURCE, status=status)",
            "    results[status.source] = comm.recv(source=status.source)",
            "return results",
        ),
        "collect, in an array": lambda: collect(
            "mine, results = np.array([result]), np.full(comm.size, result)",
            "if comm.rank:",
            "    return comm.Send(mine, dest=0)",
            "status = MPI.Status()",
            "for _ in range(1, comm.size):",
            "    comm.Recv(mine, MPI.ANY_SOURCE, MPI.ANY_TAG, status)",
            "    results[status.source] = mine[0]",
            "return results",
        ),
        "collect, the own result by a message, too": lambda: collect(
            "request = comm.isend(result, dest=0)",
            "results, status = [None] * comm.size, MPI.Status()",
            "for _ in range(comm.size if comm.rank == 0 else 0):",
            "    value = comm.recv(source=MPI.ANY_SOURCE, status=status)",
            "    results[status.source] = value",
            "request.wait()",
            "return results",
        ),
        "mean, one allreduce of two numbers": lambda: mean(
            "both = np.array([values.sum(), values.size])",
            "comm.Allreduce(MPI.IN_PLACE, both)",
            "return both[0] / both[1]",
        ),
        "mean, reduced and broadcast": lambda: mean(
            "total, count = comm.reduce(values.sum()), comm.reduce(len(values))",
            "return comm.bcast(total / count if comm.rank == 0 else None)",
        ),
        "ring, the other way round": lambda: ring(*OTHER_WAY_ROUND),
        "ring, without waiting": lambda: ring(
            (SENDRECV, "r = comm.Isend(outgoing, right); comm.Recv(incoming, left); r.Wait()")
        ),
        "ring, Irecv first": lambda: ring(
            (SENDRECV, "r = comm.Irecv(incoming, left); comm.Send(outgoing, right); r.Wait()")
        ),
    }
    wrong = {
        "exchange, returns its own": (lambda: exchange(SWAP, "return mine"), "its own values"),
        "exchange, never received": (
            lambda: exchange("return np.zeros_like(mine)"),
            "returned [0. 0. 0. 0.] … where [1000. 1001. 1002. 1003.] … is right. Did you return",
        ),
        "exchange, wrong length": (
            lambda: exchange(SWAP, "return theirs[1:]"),
            "returned float64 of shape (5,), its partner sent float64 of shape (6,)",
        ),
        "exchange, nothing returned": (lambda: exchange(SWAP), "`return` it"),
        "exchange, knows one size only": (
            lambda: exchange("theirs = np.empty(1000)", SWAP, "return theirs[:6]"),
            "np.empty_like(mine)",
        ),
        "exchange, received into mine": (
            lambda: exchange("theirs, mine = mine, mine.copy()", SWAP, "return theirs"),
            "has overwritten it",
        ),
        "exchange, value by value": (
            lambda: exchange(
                "for i in range(len(mine)):",
                "    comm.Sendrecv(mine[i:i+1], partner, recvbuf=theirs[i:i+1], source=partner)",
                "return theirs",
            ),
            "can go in one",
        ),
        "collect, the status of another message": (
            lambda: collect(
                *SENDS,
                "results = [result] * comm.size",
                "for _ in range(1, comm.size):",
                "    comm.Probe(MPI.ANY_SOURCE, status=status)",
                "    results[status.source] = comm.recv(source=MPI.ANY_SOURCE)",
                "return results",
            ),
            "in one order, and",
        ),
        "collect, one receive too few": (
            lambda: collect(
                *SENDS,
                "results = [result] * comm.size",
                "for _ in range(comm.size - 2):",
                "    value = comm.recv(status=status)",
                "    results[status.source] = value",
                "return results",
            ),
            "waits in line",
        ),
        "collect, the rank of the list": (
            lambda: collect(*SENDS, "return [comm.recv() for _ in range(1, comm.size)] + [result]"),
            "where [4, 1, 3] is right",
        ),
        "collect, never waits": (
            lambda: collect(
                "if comm.rank:",
                "    comm.isend(result, dest=0)",
                "    return None",
                "results, status = [result] * comm.size, MPI.Status()",
                "for _ in range(1, comm.size):",
                "    value = comm.recv(status=status)",
                "    results[status.source] = value",
                "return results",
            ),
            "is never waited for",
        ),
        "collect, knows three ranks only": (
            lambda: collect(
                *SENDS,
                "results = [result, None, None]",
                "for _ in range(2):",
                "    value = comm.recv(status=status)",
                "    results[status.source] = value",
                "return results",
            ),
            "IndexError",
        ),
        "mean, on rank 0 only": (
            lambda: mean(
                "total, count = comm.reduce(values.sum()), comm.reduce(len(values))",
                "if comm.rank == 0:",
                "    return total / count",
            ),
            "rank 1 returned None: `reduce` and `gather` give their result to one rank",
        ),
        "mean, nan for no values": (
            lambda: mean(
                "weighted = comm.allreduce(values.mean() * len(values))",
                "return weighted / comm.allreduce(len(values))",
            ),
            "mean of no values",
        ),
        "mean, an array": (
            lambda: mean(
                "both = np.array([values.sum(), values.size])",
                "comm.Allreduce(MPI.IN_PLACE, both)",
                "return both[:1] / both[1:]",
            ),
            "take the number out of it",
        ),
        "mean, nothing from a rank without values": (
            lambda: mean(
                "mean = comm.allreduce(values.sum()) / comm.allreduce(len(values))",
                "return mean if len(values) else None",
            ),
            "rank 1 returned None",
        ),
        "mean, printed": (lambda: mean("print(values.mean())"), "`return` it"),
        "ring, the other way round, a step too few": (
            lambda: ring(*OTHER_WAY_ROUND, ("range(2 * (p - 1))", "range(2 * (p - 1) - 1)")),
            "There is a step missing",
        ),
        "ring, values changed before": (
            lambda: ring(("total = values.copy()", "total = np.roll(values, 1) + 1")),
            "follow one chunk",
        ),
        "ring, whole arrays go round": (
            lambda: own_ring(
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
        "ring, through rank 0": (
            lambda: own_ring(
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
        "ring, in the array it was given": (
            lambda: ring(("total = values.copy()", "total = values")),
            "begin with `total = values.copy()`",
        ),
        "ring, equal chunks only": (
            lambda: ring(
                (
                    "np.array_split(total, p)",
                    "[total[i * (len(total) // p) : (i + 1) * (len(total) // p)] for i in range(p)]",
                )
            ),
            "np.array_split",
        ),
        "ring, pickled chunks": (
            lambda: ring((SENDRECV, "incoming = comm.sendrecv(outgoing, dest=right, source=left)")),
            "Use upper-case calls",
        ),
        "ring, half chunks": (
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
        "ring, in turns": (
            lambda: ring(
                (
                    SENDRECV,
                    "if comm.rank % 2: comm.Recv(incoming, left)\n"
                    "        comm.Send(outgoing, right)\n"
                    "        if comm.rank % 2 == 0: comm.Recv(incoming, left)",
                )
            ),
            "Sendrecv lets a rank send and receive in the same round",
        ),
    }
    never_ends = {
        "ring, every rank sends first": (
            lambda: ring((SENDRECV, "comm.Send(outgoing, right); comm.Recv(incoming, left)")),
            "when every rank sends first, nobody receives",
            "comm.Send(outgoing, right)",
        ),
        "both send first": (
            lambda: exchange("comm.Send(mine, partner)", "comm.Recv(theirs, partner)", "return theirs"),
            "both partners do the same thing first",
        ),
        "a collective on rank 0 alone": (
            lambda: mean(
                "if comm.rank == 0:",
                "    return comm.allreduce(values.sum()) / comm.allreduce(len(values))",
                "return 0.0",
            ),
            "is it inside an `if`",
        ),
    }
    raises = {
        "ring, made ready for the wrong chunk": (
            lambda: ring(("np.empty_like(place)", "np.empty_like(outgoing)")),
            "the size of what arrives",
        ),
        "ring, the library's own": (
            lambda: own_ring("total = np.empty_like(values)", "comm.Allreduce(values, total)", "return total"),
            "has no Allreduce: build it from Send",
        ),
    }
