"""The exercises of 09 accept the solutions, and reject wrong answers with the hint that names the mistake."""

import pytest
from judge.answers import solution
from judge.verdicts import Verdicts

from workshop_lib.lessons.feeding_the_ranks import judge as check
from workshop_lib.lessons.feeding_the_ranks import judge_augmentation as augmentation

NOTEBOOK = "09_feeding_the_ranks"
FIRST = "coming = helper.submit(read, 0) if n else None"
WAIT = "batch = coming.result()"
NEXT = "coming = helper.submit(read, i + 1)"
HAND_OUT = "yield batch"


@pytest.mark.usefixtures("healthy")
class TestFeeding(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["my_bytes", "prefetch"]
    right = {
        "my_bytes": {
            "the first ranks take one more": """
                def my_bytes(rows, row_bytes, header_bytes, rank, size):
                    each, left = divmod(rows, size)
                    first = rank * each + min(rank, left)
                    return [header_bytes + first * row_bytes, (each + (rank < left)) * row_bytes]
                """,
            "with numpy": """
                def my_bytes(rows, row_bytes, header_bytes, rank, size):
                    mine = np.array_split(np.arange(rows), size)[rank]
                    first = mine[0] if len(mine) else 0
                    return header_bytes + first * row_bytes, mine.size * np.int64(row_bytes)
                """,
            "in the other order": [(check.ROWS, "rows * (size - 1 - rank) // size, rows * (size - rank) // size")],
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
    }
    wrong = {
        "my_bytes": {
            "the end": ([(check.BYTES, "header_bytes + end * row_bytes")], "header is counted in"),
            "fractions": ([(check.ROWS, "rows * rank / size, rows * (rank + 1) / size")], "`//` divides whole numbers"),
            "no return": ([("return ", "")], "it returned nothing. It should `return` a tuple of 2"),
            "the size alone": ([(f"{check.OFFSET}, ", "")], "offset, bytes"),
            "something unknown": ([(check.ROWS, "rows - 1 - rank, rows - rank")], "none of the known mistakes"),
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


class TestAugmentation(Verdicts):
    check, notebook, names = augmentation, NOTEBOOK, ["generator"]
    right = {
        "generator": {
            "a seed sequence": [(augmentation.NUMBERS, "np.random.SeedSequence((seed, rank, step))")],
            "spawned": """
                def generator(seed, rank, step):
                    seeds = np.random.SeedSequence(seed, spawn_key=(step, rank))
                    return np.random.Generator(np.random.PCG64(seeds))
                """,
        }
    }
    wrong = {
        "generator": {
            "no return": ([("return ", "")], "it returned nothing. It should `return` a Generator"),
            "numbers": ([(f"({augmentation.NUMBERS})", "(seed).random(4)")], "it returned an array of 4"),
            "without the seed": ([(augmentation.NUMBERS, "[rank, step]")], "use the seed"),
            "a sum": ([(augmentation.NUMBERS, "step + rank + 100 * seed")], "a sum isn't"),
        }
    }


def test_the_solutions_have_nothing_of_what_a_play_looks_for():
    parts = list(check.play_parts(solution(NOTEBOOK, "my_bytes"), None))
    assert [value for _, value, *_ in parts] == [""] * 5
    numbers = list(augmentation.play_generator(solution(NOTEBOOK, "generator"), None))
    assert [value for _, value, *_ in numbers] == [[True, False], list(range(12)), True]
