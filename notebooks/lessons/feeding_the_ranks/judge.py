"""Judges the exercises of 09_feeding_the_ranks: one rank reads for all, reading ahead, and random numbers to repeat."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played

NOTEBOOK = "09_feeding_the_ranks"
written = partial(own_or_solution, notebook=NOTEBOOK)
BATCHES = 6
READ_S = 0.005
LATE_S = 1.0  # how long the consumer computes at most while it waits for the next read to begin
STILL_S = 0.03  # if no read begins for this long, no more reads are coming
FAILS_AT = 2
MOST_AHEAD = 2  # one batch that is ready, and one that is being read


def play_read_and_scatter(read_and_scatter: Callable, comm) -> Iterator[tuple]:
    group = comm.Dup()
    file_bytes = (np.arange(400 * (comm.size + 1)) % 251).astype(np.uint8)
    for offset, text, in_one_piece in (
        (16, "each rank gets the bytes of its part", "rank 0 reads all parts in one piece"),
        (200, "also if the first part begins in the middle of the file", "and that, too, in one piece"),
    ):
        reads: list[int] = []

        def read(offset: int, nbytes: int, reads: list[int] = reads) -> np.ndarray:
            reads.append(nbytes)
            return file_bytes[offset : offset + nbytes].copy()

        parts = []
        for rank in range(comm.size):
            parts.append((offset, 100 + 10 * rank))
            offset += parts[-1][1]
        yield text, read_and_scatter(group, read, parts)
        if comm.rank == 0:
            observed = f"rank 0 reads {len(reads)} times, {sum(reads)} bytes in all."
            yield in_one_piece, reads, observed, "Every read is a separate wait."
        else:
            observed = f"rank {comm.rank} reads {sum(reads)} bytes by itself."
            advice = "Only rank 0 may call `read`. The other ranks get their bytes from `comm.Scatterv`."
            yield in_one_piece, reads, observed, advice


ON_RANK_0 = "if comm.rank == 0:"
READING = "sending = [read(parts[0][0], sum(sizes)), sizes]"
BY_PARTS = "sending = [np.concatenate([read(offset, nbytes) for offset, nbytes in parts]), sizes]"
read_and_scatter = played(
    "read_and_scatter",
    NOTEBOOK,
    play_read_and_scatter,
    [
        Edit(
            "the file begins before the first part, so read from the first part's offset on.",
            ("read(parts[0][0],", "read(0,"),
        ),
        Edit("every rank reads all parts. Put the reading under `if comm.rank == 0`.", (ON_RANK_0, "if True:")),
        Edit("rank 0 reads part by part. One large read is faster than many small ones.", (READING, BY_PARTS)),
    ],
    returns="the bytes of its part",
)


class Loop:
    """A loop over n batches, with pauses in which a prefetching reader can read the next ones.

    Batch i is an array full of i, and takes READ_S to read; `fails_at` can't be read. got: the number in each batch, or
    the type of what's no batch, and last the error that ended the loop. ahead: for each batch, the later reads that had
    begun. overlapped: for each batch, whether the next read began while it was in use.
    """

    def __init__(self, prefetch: Callable, n: int, fails_at: int | None = None):
        self.fails_at = fails_at
        self.began = [threading.Event() for _ in range(n)]
        self.reads: list[int] = []
        self.threads: set[int] = set()
        self.got: list[int | str] = []
        self.ahead: list[int] = []
        self.overlapped: list[bool] = []
        try:
            with ThreadPoolExecutor(max_workers=1) as helper:
                for batch in prefetch(self.read, n, helper):
                    self.got.append(int(batch[0]) if isinstance(batch, np.ndarray) else f"a {type(batch).__name__}")
                    self.compute()
                    if len(self.got) > n:
                        break
        except NotImplementedError:
            raise
        except Exception as error:
            self.got.append(f"{type(error).__name__}: {error}")

    def read(self, i: int) -> np.ndarray:
        self.reads.append(i)
        self.threads.add(threading.get_ident())
        if not 0 <= i < len(self.began):
            raise IndexError(f"there is no batch {i}: they are numbered from 0 to {len(self.began) - 1}")
        self.began[i].set()
        time.sleep(READ_S)
        if i == self.fails_at:
            raise OSError(f"batch {i} cannot be read")
        return np.full(3, i)

    def compute(self) -> None:
        """Pretend to compute until the next read begins or LATE_S have passed, and then until no more reads begin."""
        coming = len(self.got)
        if coming < len(self.began) and all(self.overlapped):
            self.overlapped.append(self.began[coming].wait(LATE_S))
        begun = -1
        while begun < len(self.reads):
            begun = len(self.reads)
            time.sleep(STILL_S)
        self.ahead.append(begun - coming)


YIELD_HINT = "hand out what `read` returns, with `yield`, from the first to the last."
FUTURE_HINT = "it hands out a Future, the promise of a batch. Call its `result()`, which waits for the batch itself."
AHEAD_HINT = "they may not fit into memory: one is enough."
READER_HINT = "the thread that reads can't compute at the same time. Let the helper read: `helper.submit(read, i)`."
SUBMIT_HINT = (
    "the next read begins only when the next batch is asked for. A generator stands still at `yield` while its batch "
    "is used, so submit the next read before `yield`, and call its `result()` only after."
)
ERROR_HINT = (
    "training would continue with only part of the data, and nobody would notice. `future.result()` raises the error "
    "again."
)


def play_prefetch(prefetch: Callable, comm) -> Iterator[tuple]:
    """Loop over several batches, over one, over none, and over several of which one cannot be read."""
    several = Loop(prefetch, BATCHES)
    advice = FUTURE_HINT if "a Future" in several.got else YIELD_HINT
    yield "all batches come, each once and in order", several.got, f"it handed out {several.got}.", advice
    reads = sorted(several.reads)
    yield "each is read once", reads, f"`read` was called for the batches {reads}."
    most = max(several.ahead)
    observed = f"{most} more batches were read or begun while one was used:"
    yield "it reads only a little ahead", most <= MOST_AHEAD, observed, AHEAD_HINT
    advice = READER_HINT if threading.get_ident() in several.threads else SUBMIT_HINT
    yield "the next batch is read while this one is used", all(several.overlapped), "it isn't:", advice
    for n in (1, 0):
        short = Loop(prefetch, n)
        observed = f"for n = {n} it handed out {short.got} and read {short.reads}."
        advice = "is there a read before the loop, although there may be none?"
        yield "also for a single batch, and for none", [short.got, short.reads], observed, advice
    failing = Loop(prefetch, BATCHES, FAILS_AT)
    told = "cannot be read" in str(failing.got[-1:])
    observed = f"`read({FAILS_AT})` raised an error, and the consumer got {failing.got}:"
    yield "an error while reading reaches the consumer", told, observed, ERROR_HINT


prefetch = played(
    "prefetch",
    NOTEBOOK,
    play_prefetch,
    communicates=False,
    watched=False,
    stuck="the loop over the batches waits for one that never comes. Does the thread end silently after an error in "
    "`read`, or after the last batch? `future.result()` raises the error again.",
)

SEED = 7
RANKS = 3
STEPS = 4
DRAWS = 3
PLACES = [(rank, step) for rank in range(RANKS) for step in range(STEPS)]


def play_generator(generator: Callable, comm) -> Iterator[tuple]:
    first = _drawn(generator, SEED, PLACES)
    repeated = first == _drawn(generator, SEED, PLACES[::-1])
    one = generator(SEED, 0, 1) is generator(SEED, 1, 0)
    observed = "asked for every rank and step once more, it drew other numbers:"
    yield "asked again, it draws the same numbers, so a run can be resumed", [repeated, one], observed
    # The first place that draws the same numbers, for each place. Equal lists mean equal mistakes.
    same = [first.index(numbers) for numbers in first]
    at = next((at for at, earlier in enumerate(same) if earlier != at), 0)
    (rank, step), (other, earlier) = PLACES[at], PLACES[same[at]]
    observed = f"rank {rank} in step {step} draws what rank {other} draws in step {earlier}."
    yield "every rank draws different numbers in every step", same, observed
    differs = first != _drawn(generator, SEED + 1, PLACES)
    observed = f"the seeds {SEED} and {SEED + 1} give the same numbers."
    yield (
        "a different seed draws different numbers",
        differs,
        observed,
        "use the seed, too: else all runs draw the same.",
    )


def _drawn(generator: Callable, seed: int, order: list[tuple[int, int]]) -> list[list[float]]:
    """The first numbers of each rank and step, in the order of PLACES; their generators are requested in `order`."""
    numbers = {place: generator(seed, *place).random(DRAWS).tolist() for place in order}
    return [numbers[place] for place in PLACES]


NUMBERS = "[seed, rank, step]"
generator = played(
    "generator",
    NOTEBOOK,
    play_generator,
    [
        Edit(
            "without a seed it draws different numbers after a restart, and nobody can repeat the run.", (NUMBERS, "")
        ),
        Edit(
            "all ranks draw alike: image i moves in the same way on each of them. Use the rank, too.",
            (NUMBERS, "[seed, step]"),
        ),
        Edit(
            "it starts over in each step: the first image of every batch moves in the same way. Use the step, too.",
            (NUMBERS, "[seed, rank]"),
        ),
    ],
    communicates=False,
    unknown="`np.random.default_rng` also takes a list of numbers, and a different list draws different numbers.",
)
