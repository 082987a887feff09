"""Judges the exercises of 09_feeding_the_ranks: one rank reads for all, reading ahead, and random numbers to repeat."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from workshop_lib.judge import Exercise, Property, own_or_solution
from workshop_lib.judge.play import Edit, played

NOTEBOOK = "09_feeding_the_ranks"
written = partial(own_or_solution, notebook=NOTEBOOK)
BATCHES = 6
READ_S = 0.005
LATE_S = 0.3  # how long the consumer computes at most while it waits for the next read to begin
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
            advice = "Only rank 0 may call `read`. The other ranks get their bytes from `comm.scatter`."
            yield in_one_piece, reads, observed, advice


TOTAL = "sum(nbytes for _, nbytes in parts)"
PIECE = "whole[offset - first : offset - first + nbytes]"
ON_RANK_0 = "if comm.rank == 0:"
SCATTER = "return comm.scatter(pieces)"
read_and_scatter = played(
    "read_and_scatter",
    NOTEBOOK,
    play_read_and_scatter,
    [
        Edit(
            "`whole` begins at the first part, so subtract `first` from each offset.",
            (PIECE, "whole[offset : offset + nbytes]"),
        ),
        Edit(
            "the slice ends at the length of the part. It should end at its start plus its length.",
            (PIECE, "whole[offset - first : nbytes]"),
        ),
        Edit("every rank reads all parts. Put the reading under `if comm.rank == 0`.", (ON_RANK_0, "if True:")),
        Edit(
            "rank 0 reads part by part. One large read is faster than many small ones.",
            (PIECE, "read(offset, nbytes)"),
            (f"whole = read(first, {TOTAL})", "pass"),
        ),
        Edit(
            "it returns all pieces on rank 0, and nothing elsewhere: `comm.scatter` gives each rank its own.",
            (SCATTER, "return pieces"),
        ),
    ],
    alone=True,
    returns="the bytes of its part",
    raised={"expecting": "`comm.scatter` needs a list with exactly one piece per rank."},
)


class Reader:
    """A fake storage: `read(i)` takes READ_S and returns batch i, an array full of i; `fails_at` raises OSError."""

    def __init__(self, n: int, fails_at: int | None = None):
        self.n = n
        self.fails_at = fails_at
        self.began = [threading.Event() for _ in range(n)]
        self.reads: list[int] = []
        self.threads: set[int] = set()

    def __call__(self, i: int) -> np.ndarray:
        self.reads.append(i)
        self.threads.add(threading.get_ident())
        if not 0 <= i < self.n:
            raise IndexError(f"there is no batch {i}: they are numbered from 0 to {self.n - 1}")
        self.began[i].set()
        time.sleep(READ_S)
        if i == self.fails_at:
            raise OSError(f"batch {i} cannot be read")
        return np.full(3, i)


@dataclass
class Consumed:
    """What one loop over the batches requested and got."""

    reads: list[int]
    got: list[int | str] = field(default_factory=list)  # the number in each batch, or the type of what's no batch
    ahead: list[int] = field(default_factory=list)  # by batch: later reads that had begun
    overlapped: list[bool] = field(default_factory=list)  # by batch: whether the next read began while it was in use
    error: str = ""
    same_thread: bool = False  # whether the consumer's own thread did the reading

    def __str__(self) -> str:
        return f"{self.got}{' and then ' if self.error else ''}{self.error}"


def observe_loops(comm, prefetch: Callable) -> list[Consumed]:
    """Loops over several batches, over one, over none, and over several of which one cannot be read."""
    return [_consumed(prefetch, *which) for which in ((BATCHES,), (1,), (0,), (BATCHES, FAILS_AT))]


def _consumed(prefetch: Callable, n: int, fails_at: int | None = None) -> Consumed:
    """Loop over the batches, with pauses in which a prefetching reader can read the next ones."""
    read = Reader(n, fails_at)
    loop = Consumed(read.reads)
    try:
        for batch in prefetch(read, n):
            loop.got.append(int(batch[0]) if isinstance(batch, np.ndarray) else f"a {type(batch).__name__}")
            _compute(read, loop)
            if len(loop.got) > n:
                break
    except NotImplementedError:
        raise
    except Exception as error:
        loop.error = f"{type(error).__name__}: {error}"
    loop.same_thread = threading.get_ident() in read.threads
    return loop


def _compute(read: Reader, loop: Consumed) -> None:
    """Pretend to compute until the next read begins or LATE_S have passed, and then until no more reads begin."""
    coming = len(loop.got)
    if coming < read.n and all(loop.overlapped):
        loop.overlapped.append(read.began[coming].wait(LATE_S))
    begun = -1
    while begun < len(read.reads):
        begun = len(read.reads)
        time.sleep(STILL_S)
    loop.ahead.append(begun - coming)


READER_HINT = "the thread that reads can't compute at the same time. Let a second one read: `helper.submit(read, i)`."
SUBMIT_HINT = (
    "the next read begins only when the next batch is asked for. A generator stands still at `yield` while its batch "
    "is used, so submit the next read before `yield`, and call its `result()` only after."
)


def loops_properties(observations: list) -> Iterator[Property]:
    several, one, none, failing = observations[0]
    right = list(range(BATCHES))
    hint = f"it handed out {several}. Hand out what `read` returns, with `yield`, from the first to the last."
    if "a Future" in several.got:
        hint = "it hands out a Future, the promise of a batch. Call its `result()`, which waits for the batch itself."
    yield Property("all batches come, each once and in order", several.got == right and not several.error, hint)
    hint = f"`read` was called for the batches {sorted(several.reads)}."
    yield Property("each is read once", sorted(several.reads) == right, hint)
    most = max(several.ahead)
    hint = f"{most} more batches were read or begun while one was used. They may not fit into memory: one is enough."
    yield Property("it reads only a little ahead", most <= MOST_AHEAD, hint)
    hint = READER_HINT if several.same_thread else SUBMIT_HINT
    yield Property("the next batch is read while this one is used", all(several.overlapped), hint)
    short = one.got == one.reads == [0] and none.got == none.reads == [] and not (one.error or none.error)
    yield Property("also for a single batch, and for none", short, f"for n = 1 it gave {one}, for n = 0 {none}.")
    hint = (
        f"`read({FAILS_AT})` raised an error, and the consumer got {failing}. Its training would continue with "
        "only part of the data, and nobody would notice. `future.result()` raises the error again."
    )
    yield Property("an error while reading reaches the consumer", "cannot be read" in failing.error, hint)


prefetch = Exercise(
    "prefetch",
    observe_loops,
    loops_properties,
    notebook=NOTEBOOK,
    communicates=False,
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
            "all ranks draw the same in every step: the first image always moves in the same way, on every rank.",
            (NUMBERS, "seed"),
        ),
        Edit(
            "all ranks draw alike: image i moves in the same way on each of them. Use the rank, too.",
            (NUMBERS, "[seed, step]"),
        ),
        Edit(
            "it starts over in each step: the first image of every batch moves in the same way. Use the step, too.",
            (NUMBERS, "[seed, rank]"),
        ),
        Edit("a sum isn't enough: give all of them, as a list.", (NUMBERS, "seed + rank + step")),
    ],
    communicates=False,
    unknown="`np.random.default_rng` also takes a list of numbers, and a different list draws different numbers.",
)
