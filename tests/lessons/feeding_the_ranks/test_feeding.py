"""The exercises of 09 accept the solutions, and reject wrong answers with the hint that names the mistake."""

import pytest
from judge.answers import solution
from judge.verdicts import Verdicts

from workshop_lib.lessons.feeding_the_ranks import judge as check
from workshop_lib.lessons.feeding_the_ranks.judge_augmentation import NUMBERS, play_generator

NOTEBOOK = "09_feeding_the_ranks"
FIRST = "coming = helper.submit(read, 0) if n else None"
WAIT = "batch = coming.result()"
NEXT = "coming = helper.submit(read, i + 1)"
HAND_OUT = "yield batch"


@pytest.mark.usefixtures("healthy")
class TestFeeding(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["read_and_scatter", "prefetch", "generator"]
    right = {
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
            "a seed sequence": [(NUMBERS, "np.random.SeedSequence((seed, rank, step))")],
            "spawned": """
                def generator(seed, rank, step):
                    seeds = np.random.SeedSequence(seed, spawn_key=(step, rank))
                    return np.random.Generator(np.random.PCG64(seeds))
                """,
        },
    }
    wrong = {
        "read_and_scatter": {
            "no return": ([("return ", "")], "rank 0 returned nothing. It should `return` an array"),
            "own part": ([(check.SCATTER, "return read(*parts[comm.rank])")], "Here, only rank 0 reads, and scatters."),
            "all parts twice": ([("pieces = [", "read(first, 1)\n        pieces = [")], "rank 0 reads 2 times"),
            "in another order": ([(check.SCATTER, "return comm.scatter(pieces and pieces[::-1])")], "should `return`"),
        },
        "prefetch": {
            "in turn": (
                """
                def prefetch(read, n):
                    for i in range(n): yield read(i)
                """,
                "Let a second thread read",
            ),
            "waited for at once": (
                """
                def prefetch(read, n):
                    with ThreadPoolExecutor(1) as helper:
                        for i in range(n): yield helper.submit(read, i).result()
                """,
                "submit the next read before `yield`",
            ),
            "everything first": (
                """
                def prefetch(read, n):
                    yield from [read(i) for i in range(n)]
                """,
                "one read ahead is enough",
            ),
            "past the end": ([("if i + 1 < n:", "if True:")], "it asked for batch 6"),
            "the last missing": ([("for i in range(n):", "for i in range(n - 1):")], "the last batch is missing"),
            "the first twice": ([(NEXT, "coming = helper.submit(read, i)")], "some of them twice"),
            "the future": ([(WAIT, "batch = coming")], "waits for the batch itself"),
            "as they come": (
                """
                def prefetch(read, n):
                    with ThreadPoolExecutor(1) as helper:
                        coming = [helper.submit(read, i) for i in reversed(range(n))]
                        for future in coming: yield future.result()
                """,
                "hand them out in order",
            ),
            "nothing handed out": ([(HAND_OUT, "pass")], "`yield`, one at a time"),
            "the error swallowed": (
                [(WAIT, "try: batch = coming.result()\n            except OSError: return")],
                "raises the error again",
            ),
            "not for none": ([(FIRST, "coming = helper.submit(read, 0)")], "for n = 0"),
        },
        "generator": {
            "no return": ([("return ", "")], "it returned nothing. It should `return` a Generator"),
            "numbers": ([(f"({NUMBERS})", "(seed).random(4)")], "it returned an array of 4"),
            "without the seed": ([(NUMBERS, "[rank, step]")], "use the seed"),
            "a sum": ([(NUMBERS, "step + rank + 100 * seed")], "a sum isn't"),
        },
    }
    never_ends = {
        "prefetch": {
            "the thread dies and nobody is told": (
                """
                def prefetch(read, n):
                    import queue, threading
                    filled = queue.Queue()
                    threading.Thread(target=lambda: [filled.put(read(i)) for i in range(n)], daemon=True).start()
                    for _ in range(n): yield filled.get()
                """,
                "end silently",
            )
        }
    }


def test_the_solution_has_nothing_of_what_the_play_looks_for():
    numbers = list(play_generator(solution(NOTEBOOK, "generator"), None))
    assert [value for _, value, *_ in numbers] == [[True, False], list(range(12)), True]
