"""Right answers to the exercises of 01 beside the solutions, and wrong ones beside the known mistakes."""

SWAP = "comm.Sendrecv(mine, dest=partner, recvbuf=theirs, source=partner)"
TURNS = """if comm.rank < partner: comm.Send(mine, partner)
    comm.Recv(theirs, partner)
    if comm.rank > partner: comm.Send(mine, partner)"""
RECEIVE = "value = comm.recv(source=MPI.ANY_SOURCE, status=status)"
SEND = "if comm.rank > 0:\n        comm.send(result, dest=0)\n        return None"
SENDRECV = "comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)"
OTHER_WAY_ROUND = [
    (SENDRECV, "comm.Sendrecv(outgoing, dest=left, recvbuf=incoming, source=right)"),
    ("(comm.rank - step) % p", "(comm.rank + step) % p"),
    ("(comm.rank - step - 1) % p", "(comm.rank + step + 1) % p"),
]

RIGHT = {
    "exchange": {
        "in turns": [(SWAP, TURNS)],
        "waiting for both": [
            (SWAP, "from mpi4py import MPI"),
            ("return", "MPI.Request.Waitall([comm.Isend(mine, partner), comm.Irecv(theirs, partner)]); return"),
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
                bit = comm.size
                while bit > 1:  # the own half of what is left gets the partner's values
                    bit //= 2
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
WRONG = {
    "exchange": {
        "value by value": (
            [(SWAP, "for at in range(len(mine)): theirs[at] = comm.sendrecv(mine[at], partner, source=partner)")],
            "can go in one",
        )
    },
    "collect": {
        "gather": ([("if comm.rank > 0:", "return comm.gather(result)\n    if comm.rank > 0:")], "has no gather")
    },
    "ring_allreduce": {
        "pickled chunks": (
            [(SENDRECV, "incoming = comm.sendrecv(outgoing, dest=right, source=left)")],
            "with upper-case calls",
        ),
        "made ready for the wrong chunk": (
            [("np.empty_like(place)", "np.empty_like(outgoing)")],
            "the size of what arrives",
        ),
    },
}
NEVER_ENDS = {
    "exchange": {
        "both send first": (
            [(SWAP, "comm.Send(mine, partner); comm.Recv(theirs, partner)")],
            "both partners do the same thing first",
        )
    },
    "ring_allreduce": {
        "every rank sends first": (
            [(SENDRECV, "comm.Send(outgoing, right); comm.Recv(incoming, left)")],
            "when every rank sends first, nobody receives",
        )
    },
    "collect": {
        "the first from anybody, the rest in order": (
            [
                ("for _ in range(comm.size - 1)", "for other in [MPI.ANY_SOURCE, *range(2, comm.size)]"),
                ("source=MPI.ANY_SOURCE", "source=other"),
            ],
            "from any source, as many as there are",
        )
    },
}
