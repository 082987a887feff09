"""Right answers to the exercises of 09 beside the solutions, and wrong ones beside the known mistakes."""

from lessons.feeding_the_ranks import judge as check

FIRST = "coming = helper.submit(read, 0) if n else None"
WAIT = "batch = coming.result()"

RIGHT = {
    "read_and_scatter": {
        "Scatterv": """
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
        "messages": """
            def read_and_scatter(comm, read, parts):
                if comm.rank > 0:
                    return comm.recv(source=0)
                sizes = [nbytes for _, nbytes in parts]
                first, *others = np.split(read(parts[0][0], sum(sizes)), np.cumsum(sizes)[:-1])
                for rank, piece in enumerate(others, 1):
                    comm.send(piece, dest=rank)
                return first
            """,
    },
    "prefetch": {
        "a queue": """
            def prefetch(read, n):
                import queue, threading
                filled = queue.Queue(maxsize=1)
                def fill():
                    try:
                        for i in range(n): filled.put((read(i), None))
                    except Exception as error:
                        filled.put((None, error))
                threading.Thread(target=fill, daemon=True).start()
                for _ in range(n):
                    batch, error = filled.get()
                    if error is not None: raise error
                    yield batch
            """,
        "two ahead": """
            def prefetch(read, n):
                with ThreadPoolExecutor(2) as helper:
                    coming = [helper.submit(read, i) for i in range(min(2, n))]
                    for i in range(n):
                        batch = coming.pop(0).result()
                        if i + 2 < n: coming.append(helper.submit(read, i + 2))
                        yield batch
            """,
        "submitted before the wait": """
            def prefetch(read, n):
                with ThreadPoolExecutor(1) as helper:
                    following = helper.submit(read, 0) if n else None
                    for i in range(n):
                        coming = following
                        following = helper.submit(read, i + 1) if i + 1 < n else None
                        yield coming.result()
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
        "all parts twice": ([("pieces = [", "read(first, 1)\n        pieces = [")], "rank 0 reads 2 times")
    },
    "prefetch": {
        "in turn": (
            """
            def prefetch(read, n):
                for i in range(n): yield read(i)
            """,
            check.READER_HINT,
        ),
        "waited for at once": (
            """
            def prefetch(read, n):
                with ThreadPoolExecutor(1) as helper:
                    for i in range(n): yield helper.submit(read, i).result()
            """,
            check.SUBMIT_HINT,
        ),
        "everything first": (
            """
            def prefetch(read, n):
                yield from [read(i) for i in range(n)]
            """,
            "one is enough",
        ),
        "past the end": ([("if i + 1 < n:", "if True:")], "for the batches [0, 1, 2, 3, 4, 5, 6]"),
        "the future": ([(WAIT, "batch = coming")], "waits for the batch itself"),
        "the error swallowed": (
            [(WAIT, "try: batch = coming.result()\n            except OSError: return")],
            "raises the error again",
        ),
        "not for none": ([(FIRST, "coming = helper.submit(read, 0)")], "for n = 0"),
    },
    "generator": {"without the seed": ([(check.NUMBERS, "[rank, step]")], "use the seed")},
}
NEVER_ENDS = {
    "prefetch": {
        "the thread dies and nobody is told": (
            """
            def prefetch(read, n):
                import queue, threading
                filled = queue.Queue(1)
                threading.Thread(target=lambda: [filled.put(read(i)) for i in range(n)], daemon=True).start()
                for _ in range(n): yield filled.get()
            """,
            "end silently",
        )
    }
}
