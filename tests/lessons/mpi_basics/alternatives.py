"""Right answers to the exercises of 01 beside the solutions, and wrong ones beside the known mistakes."""

SWAP = "comm.Sendrecv(mine, dest=partner, recvbuf=theirs, source=partner)"
TURNS = """if comm.rank < partner: comm.Send(mine, partner)
    comm.Recv(theirs, partner)
    if comm.rank > partner: comm.Send(mine, partner)"""
RECEIVE = "value = comm.recv(source=MPI.ANY_SOURCE, status=status)"
SEND = "if comm.rank > 0:\n        comm.send(result, dest=0)\n        return None"
SENDRECV = "comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)"
LEFTWARDS = (SENDRECV, "comm.Sendrecv(outgoing, dest=left, recvbuf=incoming, source=right)")
NOT_WAITING = {
    "without waiting": [(SENDRECV, "r = comm.Isend(outgoing, right); comm.Recv(incoming, left); r.Wait()")],
    "Irecv first": [(SENDRECV, "r = comm.Irecv(incoming, left); comm.Send(outgoing, right); r.Wait()")],
}

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
    "reduce_scatter": {
        **NOT_WAITING,
        "the other way round": [
            LEFTWARDS,
            ("(comm.rank - step - 1) % p", "(comm.rank + step + 3) % p"),
            ("(comm.rank - step) % p", "(comm.rank + step + 2) % p"),
        ],
        "straight to the owner": """
            def reduce_scatter(comm, chunks):
                p, mine = comm.size, (comm.rank + 1) % comm.size
                own = chunks[mine].copy()
                for far in range(1, p):
                    dest, source = (comm.rank + far) % p, (comm.rank - far) % p
                    incoming = np.empty_like(own)
                    comm.Sendrecv(chunks[(dest + 1) % p], dest, recvbuf=incoming, source=source)
                    own += incoming
                chunks[mine][:] = own
            """,
        "one sum that goes around, in a new array": """
            def reduce_scatter(comm, chunks):
                p = comm.size
                right, left = (comm.rank + 1) % p, (comm.rank - 1) % p
                at, total = comm.rank, chunks[comm.rank]
                for _ in range(p - 1):
                    at = (at - 1) % p
                    incoming = np.empty_like(chunks[at])
                    comm.Sendrecv(total, right, recvbuf=incoming, source=left)
                    total = incoming + chunks[at]
                chunks[at] = total
            """,
        "chunk numbers counted down": """
            def reduce_scatter(comm, chunks):
                p = comm.size
                for number in range(comm.rank, comm.rank - p + 1, -1):
                    incoming = np.zeros(len(chunks[(number - 1) % p]))
                    requests = [comm.Irecv(incoming, (comm.rank - 1) % p)]
                    requests.append(comm.Isend(chunks[number % p], (comm.rank + 1) % p))
                    MPI.Request.Waitall(requests)
                    chunks[(number - 1) % p] = chunks[(number - 1) % p] + incoming
            """,
    },
    "allgather": {
        **NOT_WAITING,
        "the other way round": [
            LEFTWARDS,
            ("(comm.rank - step) % p", "(comm.rank + step + 2) % p"),
            ("(comm.rank + 1 - step) % p", "(comm.rank + 1 + step) % p"),
        ],
        "straight into the chunk": [("recvbuf=incoming", "recvbuf=place"), ("place[:] = incoming", "pass")],
        "new arrays in the list": [("place[:] = incoming", "chunks[(comm.rank - step) % p] = incoming")],
        "to each rank in turn": """
            def allgather(comm, chunks):
                p, mine = comm.size, (comm.rank + 1) % comm.size
                for far in range(1, p):
                    source = (comm.rank - far) % p
                    place = chunks[(source + 1) % p]
                    comm.Sendrecv(chunks[mine], (comm.rank + far) % p, recvbuf=place, source=source)
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
    "reduce_scatter": {
        "pickled chunks": (
            [(SENDRECV, "incoming = comm.sendrecv(outgoing, dest=right, source=left)")],
            "with upper-case calls",
        ),
        "made ready for the wrong chunk": (
            [("np.empty_like(place)", "np.empty_like(outgoing)")],
            "the size of what arrives",
        ),
    },
    "allgather": {
        "all chunks in each step": (
            [
                (SENDRECV, "every = comm.sendrecv(chunks, right, source=left)"),
                ("place[:] = incoming", "place[:] = every[(comm.rank - step) % p]"),
            ],
            "with upper-case calls",
        )
    },
}
NEVER_ENDS = {
    "exchange": {
        "both send first": (
            [(SWAP, "comm.Send(mine, partner); comm.Recv(theirs, partner)")],
            "both partners do the same thing first",
        )
    },
    "reduce_scatter": {
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
