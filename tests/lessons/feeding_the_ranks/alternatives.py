"""Right answers to the exercises of 09 beside the solutions, and wrong ones beside the known mistakes."""

from lessons.feeding_the_ranks import judge as check

FIRST = "coming = helper.submit(read, 0) if n else None"
WAIT = "batch = coming.result()"

RIGHT = {
    "read_and_scatter": {
        "with displacements": """
            def read_and_scatter(comm, read, parts):
                offsets, sizes = zip(*parts)
                mine = np.empty(sizes[comm.rank], np.uint8)
                sending = None
                if comm.rank == 0:
                    whole = read(offsets[0], offsets[-1] + sizes[-1] - offsets[0])
                    sending = [whole, (sizes, [offset - offsets[0] for offset in offsets])]
                comm.Scatterv(sending, mine)
                return mine
            """,
        "pickled pieces": """
            def read_and_scatter(comm, read, parts):
                pieces = None
                if comm.rank == 0:
                    sizes = [nbytes for _, nbytes in parts]
                    pieces = np.split(read(parts[0][0], sum(sizes)), np.cumsum(sizes)[:-1])
                return comm.scatter(pieces)
            """,
        "messages": """
            def read_and_scatter(comm, read, parts):
                if comm.rank > 0:
                    mine = np.empty(parts[comm.rank][1], np.uint8)
                    comm.Recv(mine, source=0)
                    return mine
                sizes = [nbytes for _, nbytes in parts]
                first, *others = np.split(read(parts[0][0], sum(sizes)), np.cumsum(sizes)[:-1])
                for rank, piece in enumerate(others, 1):
                    comm.Send(piece, dest=rank)
                return first
            """,
        "everybody gets all": """
            def read_and_scatter(comm, read, parts):
                first = parts[0][0]
                whole = np.empty(sum(nbytes for _, nbytes in parts), np.uint8)
                if comm.rank == 0:
                    whole = read(first, len(whole))
                comm.Bcast(whole)
                offset, nbytes = parts[comm.rank]
                return whole[offset - first : offset - first + nbytes].copy()
            """,
        "an object for all": """
            def read_and_scatter(comm, read, parts):
                (first, _), (last, length) = parts[0], parts[-1]
                whole = comm.bcast(read(first, last + length - first) if comm.rank == 0 else None)
                offset, nbytes = parts[comm.rank]
                return whole[offset - first :][:nbytes].copy()
            """,
    },
    "prefetch": {
        "a deque": """
            def prefetch(read, n, helper):
                from collections import deque
                coming = deque(helper.submit(read, i) for i in range(min(1, n)))
                for i in range(1, n + 1):
                    batch = coming.popleft().result()
                    if i < n: coming.append(helper.submit(read, i))
                    yield batch
            """,
        "two ahead": """
            def prefetch(read, n, helper):
                coming = [helper.submit(read, i) for i in range(min(2, n))]
                for i in range(n):
                    batch = coming.pop(0).result()
                    if i + 2 < n: coming.append(helper.submit(read, i + 2))
                    yield batch
            """,
        "submitted before the wait": """
            def prefetch(read, n, helper):
                following = helper.submit(read, 0) if n else None
                for i in range(n):
                    coming = following
                    following = helper.submit(read, i + 1) if i + 1 < n else None
                    yield coming.result()
            """,
        "the last batch after the loop": """
            def prefetch(read, n, helper):
                if n == 0: return
                coming = helper.submit(read, 0)
                for i in range(1, n):
                    batch = coming.result()
                    coming = helper.submit(read, i)
                    yield batch
                yield coming.result()
            """,
        "a while loop": """
            def prefetch(read, n, helper):
                i = 0
                coming = None
                while i < n:
                    batch = (coming or helper.submit(read, i)).result()
                    i += 1
                    coming = helper.submit(read, i) if i < n else None
                    yield batch
            """,
    },
    "generator": {
        "a seed sequence": [(check.NUMBERS, "np.random.SeedSequence((seed, rank, step))")],
        "spawned": """
            def generator(seed, rank, step):
                seeds = np.random.SeedSequence(seed, spawn_key=(step, rank))
                return np.random.Generator(np.random.PCG64(seeds))
            """,
    },
}
WRONG = {
    "read_and_scatter": {
        "all parts twice": ([("sending = [read", "read(0, 1)\n        sending = [read")], "rank 0 reads 2 times")
    },
    "prefetch": {
        "in turn": (
            """
            def prefetch(read, n, helper):
                for i in range(n): yield read(i)
            """,
            check.READER_HINT,
        ),
        "waited for at once": (
            """
            def prefetch(read, n, helper):
                for i in range(n): yield helper.submit(read, i).result()
            """,
            check.SUBMIT_HINT,
        ),
        "everything first": (
            """
            def prefetch(read, n, helper):
                yield from list(helper.map(read, range(n)))
            """,
            "one is enough",
        ),
        "past the end": ([("if i + 1 < n:", "if True:")], "for the batches [0, 1, 2, 3, 4, 5, 6]"),
        "the future": ([(WAIT, "batch = coming")], "waits for the batch itself"),
        "the error swallowed": (
            [(WAIT, "try: batch = coming.result()\n        except OSError: return")],
            "raises the error again",
        ),
        "not for none": ([(FIRST, "coming = helper.submit(read, 0)")], "for n = 0"),
    },
    "generator": {"without the seed": ([(check.NUMBERS, "[rank, step]")], "use the seed")},
}
NEVER_ENDS = {
    "prefetch": {
        "nobody fills the queue after an error": (
            """
            def prefetch(read, n, helper):
                import queue
                filled = queue.Queue(1)
                helper.submit(lambda: [filled.put(read(i)) for i in range(n)])
                for _ in range(n): yield filled.get()
            """,
            "end silently",
        )
    }
}
