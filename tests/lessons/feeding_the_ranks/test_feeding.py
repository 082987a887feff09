"""The exercises of 09 accept the solutions, and reject wrong answers with the hint that names the mistake."""

import pytest
from judge.answers import variant, written
from judge.verdicts import Verdicts

from workshop_lib.lessons.feeding_the_ranks import judge as check
from workshop_lib.lessons.feeding_the_ranks import judge_augmentation as augmentation

pytestmark = pytest.mark.usefixtures("healthy")

NOTEBOOK = "09_feeding_the_ranks"
ROWS = "rows * rank // size, rows * (rank + 1) // size"
BYTES = "(end - first) * row_bytes"
FIRST = "coming = helper.submit(read, 0) if n else None"
WAIT = "batch = coming.result()"
NEXT = "coming = helper.submit(read, i + 1)"
HAND_OUT = "yield batch"
BYTES_HEAD = "my_bytes(rows, row_bytes, header_bytes, rank, size)"
PREFETCH_HEAD = "prefetch(read, n)"


def bytes_(*changes):
    return lambda: variant(NOTEBOOK, "my_bytes", *changes)


def ahead(*changes):
    return lambda: variant(NOTEBOOK, "prefetch", *changes)


def answer(head, *lines):
    imports = "import queue, threading, numpy\nfrom concurrent.futures import ThreadPoolExecutor"
    return lambda: written(imports, head, *lines)


QUEUE = (
    "filled = queue.Queue(maxsize=1)",
    "def fill():",
    "    try:",
    "        for i in range(n): filled.put((read(i), None))",
    "    except Exception as error:",
    "        filled.put((None, error))",
    "threading.Thread(target=fill, daemon=True).start()",
    "for _ in range(n):",
    "    batch, error = filled.get()",
    "    if error is not None: raise error",
    "    yield batch",
)

RIGHT = {
    "the first ranks take one more": answer(
        BYTES_HEAD,
        "each, left = divmod(rows, size)",
        "first = rank * each + min(rank, left)",
        "return [header_bytes + first * row_bytes, (each + (rank < left)) * row_bytes]",
    ),
    "with numpy": answer(
        BYTES_HEAD,
        "mine = numpy.array_split(numpy.arange(rows), size)[rank]",
        "first = mine[0] if len(mine) else 0",
        "return header_bytes + first * row_bytes, mine.size * numpy.int64(row_bytes)",
    ),
    "in the other order": bytes_((ROWS, "rows * (size - 1 - rank) // size, rows * (size - rank) // size")),
    "a queue": answer(PREFETCH_HEAD, *QUEUE),
    "two ahead": answer(
        PREFETCH_HEAD,
        "with ThreadPoolExecutor(2) as helper:",
        "    coming = [helper.submit(read, i) for i in range(min(2, n))]",
        "    for i in range(n):",
        "        batch = coming.pop(0).result()",
        "        if i + 2 < n: coming.append(helper.submit(read, i + 2))",
        "        yield batch",
    ),
    "submitted before the wait": answer(
        PREFETCH_HEAD,
        "with ThreadPoolExecutor(1) as helper:",
        "    following = helper.submit(read, 0) if n else None",
        "    for i in range(n):",
        "        coming = following",
        "        following = helper.submit(read, i + 1) if i + 1 < n else None",
        "        yield coming.result()",
    ),
}

WRONG = {
    "the end": (bytes_((BYTES, "header_bytes + end * row_bytes")), "header is counted in"),
    "fractions": (bytes_((ROWS, "rows * rank / size, rows * (rank + 1) / size")), "`//` divides whole numbers"),
    "no return": (answer(BYTES_HEAD, "print(header_bytes + rank)"), "`return` the offset"),
    "the size alone": (answer(BYTES_HEAD, "return rows // size * row_bytes"), "a pair, (offset, bytes)"),
    "something unknown": (bytes_((ROWS, "rows - 1 - rank, rows - rank")), "none of the known mistakes"),
    "in turn": (answer(PREFETCH_HEAD, "for i in range(n): yield read(i)"), "Let a second thread read"),
    "waited for at once": (
        answer(
            PREFETCH_HEAD,
            "with ThreadPoolExecutor(1) as helper:",
            "    for i in range(n): yield helper.submit(read, i).result()",
        ),
        "submit the next read before `yield`",
    ),
    "everything first": (
        answer(PREFETCH_HEAD, "batches = [read(i) for i in range(n)]", "for batch in batches: yield batch"),
        "one read ahead is enough",
    ),
    "past the end": (ahead(("if i + 1 < n:", "if True:")), "it asked for batch 6"),
    "the last missing": (ahead(("for i in range(n):", "for i in range(n - 1):")), "the last batch is missing"),
    "the first twice": (ahead((NEXT, "coming = helper.submit(read, i)")), "some of them twice"),
    "the future": (ahead((WAIT, "batch = coming"), (HAND_OUT, "yield batch")), "waits for the batch itself"),
    "as they come": (
        answer(
            PREFETCH_HEAD,
            "with ThreadPoolExecutor(1) as helper:",
            "    coming = [helper.submit(read, i) for i in reversed(range(n))]",
            "    for future in coming: yield future.result()",
        ),
        "hand them out in order",
    ),
    "nothing handed out": (ahead((HAND_OUT, "pass")), "`yield`, one at a time"),
    "the error swallowed": (
        ahead((WAIT, "try: batch = coming.result()\n            except OSError: return")),
        "raises the error again",
    ),
    "not for none": (ahead((FIRST, "coming = helper.submit(read, 0)")), "for n = 0"),
}

NEVER_ENDS = {
    "the thread dies and nobody is told": (
        answer(
            PREFETCH_HEAD,
            "filled = queue.Queue()",
            "threading.Thread(target=lambda: [filled.put(read(i)) for i in range(n)], daemon=True).start()",
            "for _ in range(n): yield filled.get()",
        ),
        "end silently",
    )
}


class TestFeeding(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["my_bytes", "prefetch"]
    right, wrong, never_ends = RIGHT, WRONG, NEVER_ENDS


GENERATOR_HEAD = "generator(seed, rank, step)"


class TestAugmentation(Verdicts):
    check, notebook, names = augmentation, NOTEBOOK, ["generator"]
    right = {
        "a seed sequence": answer(
            GENERATOR_HEAD, "return numpy.random.default_rng(numpy.random.SeedSequence((seed, rank, step)))"
        ),
        "spawned": answer(
            GENERATOR_HEAD,
            "seeds = numpy.random.SeedSequence(seed, spawn_key=(step, rank))",
            "return numpy.random.Generator(numpy.random.PCG64(seeds))",
        ),
    }
    wrong = {
        "no return": (answer(GENERATOR_HEAD, "numpy.random.default_rng([seed, rank, step])"), "`return` the generator"),
        "numbers": (answer(GENERATOR_HEAD, "return numpy.random.default_rng(seed).random(4)"), "it returned ["),
        "without the seed": (answer(GENERATOR_HEAD, "return numpy.random.default_rng([rank, step])"), "use the seed"),
        "a sum": (answer(GENERATOR_HEAD, "return numpy.random.default_rng(step + rank + 100 * seed)"), "a sum isn't"),
    }
