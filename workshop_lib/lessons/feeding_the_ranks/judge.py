"""Judges the exercises of 09_feeding_the_ranks. `generator`, the last one, is in judge_augmentation.py."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from workshop_lib.judge import Exercise, Property, own_or_solution
from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.feeding_the_ranks.judge_augmentation import generator

__all__ = ["generator", "prefetch", "read_and_scatter", "written"]

written = partial(own_or_solution, notebook="09_feeding_the_ranks")
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


FIRST = "parts[0][0]"
TOTAL = "sum(nbytes for _, nbytes in parts)"
PIECE = "whole[offset - first : offset - first + nbytes]"
ON_RANK_0 = "if comm.rank == 0:"
SCATTER = "return comm.scatter(pieces)"
read_and_scatter = played(
    "read_and_scatter",
    "09_feeding_the_ranks",
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
        Edit(
            "reading begins at the start of the file, but the first part begins later.",
            (f"read(first, {TOTAL})", f"read(0, {TOTAL})"),
        ),
        Edit("not every group's first part begins after the header. Take the first offset in `parts`.", (FIRST, "16")),
        Edit("every rank reads all parts. Put the reading under `if comm.rank == 0`.", (ON_RANK_0, "if True:")),
        Edit(
            "every rank reads its own part. Here, only rank 0 reads, and scatters.",
            (SCATTER, "return read(*parts[comm.rank])"),
        ),
        Edit(
            "rank 0 reads part by part. One large read is faster than many small ones.",
            (PIECE, "read(offset, nbytes)"),
            (f"whole = read(first, {TOTAL})", "pass"),
        ),
        Edit(
            "it returns all pieces on rank 0, and nothing elsewhere: `comm.scatter` gives each rank its own.",
            (SCATTER, "return pieces"),
        ),
        Edit(
            "rank 0 returns the pieces of all ranks to everybody: use `comm.scatter`.",
            (SCATTER, "return comm.bcast(pieces)"),
        ),
    ],
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
        self.outside: list[int] = []

    def __call__(self, i: int) -> np.ndarray:
        if not 0 <= i < self.n:
            self.outside.append(i)
            raise IndexError(f"there is no batch {i}: they are numbered from 0 to {self.n - 1}")
        self.reads.append(i)
        self.threads.add(threading.get_ident())
        self.began[i].set()
        time.sleep(READ_S)
        if i == self.fails_at:
            raise OSError(f"batch {i} cannot be read")
        return np.full(3, i)


@dataclass
class Consumed:
    """What one loop over the batches requested and got."""

    reads: list[int]
    outside: list[int]  # requested batches that do not exist
    got: list[int | None] = field(default_factory=list)
    ahead: list[int] = field(default_factory=list, compare=False)  # by batch: later reads that had begun
    overlapped: list[bool] = field(default_factory=list)  # by batch: whether the next read began while it was in use
    error: str = ""
    not_batches: str = ""  # what the function gave instead of batches
    same_thread: bool = False  # whether the consumer's own thread did the reading

    def __str__(self) -> str:
        if self.error:
            return f"{self.got} and then {self.error}"
        return f"{self.got}, without an error" if self.got else f"{self.got}"


def observe_loops(comm, function: Callable) -> list[Consumed]:
    """Loops over several batches, over one, over none, and over several of which one cannot be read."""
    return [_consumed(function, *which) for which in ((BATCHES,), (1,), (0,), (BATCHES, FAILS_AT))]


def _consumed(function: Callable, n: int, fails_at: int | None = None) -> Consumed:
    """Loop over the batches, with pauses in which a prefetching reader can read the next ones."""
    read = Reader(n, fails_at)
    loop = Consumed(read.reads, read.outside)
    try:
        batches: Any = function(read, n)
        if not hasattr(batches, "__iter__"):
            loop.not_batches = repr(batches)
            batches = ()
        for batch in batches:
            if not isinstance(batch, np.ndarray):
                loop.not_batches = f"a {type(batch).__name__}"
                break
            loop.got.append(int(batch.flat[0]) if batch.size else None)
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


def loops_properties(observations: list) -> Iterator[Property]:
    """Check what the loops got. Each property has its own hint, because running a known mistake would take a second."""
    several, one, none, failing = observations[0]
    yield Property("it hands out batches", not several.not_batches, _kind_hint(several))
    right = list(range(BATCHES))
    in_order = several.got == right and not several.error and not several.outside
    yield Property("all batches come, each once and in order", in_order, _order_hint(several, right))
    hint = f"`read` was called {len(several.reads)} times, for the batches {sorted(set(several.reads))}."
    yield Property("each is read once", sorted(several.reads) == right, hint)
    most = max(several.ahead)
    hint = (
        f"while the consumer had one batch, {most} more were read or begun. A whole data set may not fit into memory, "
        "and one read ahead is enough to have the next batch ready."
    )
    yield Property("it reads only a little ahead", most <= MOST_AHEAD, hint)
    hint = (
        "the thread that reads also computes, and it can't do both at a time. Let a second thread read: "
        "`helper.submit(read, i)`."
        if several.same_thread
        else "the next read begins only when the next batch is asked for. A generator stands still at `yield` while "
        "its batch is used, so submit the next read before `yield`, and call its `result()` only after."
    )
    yield Property("the next batch is read while this one is used", all(several.overlapped), hint)
    short = one.got == [0] and none.got == [] and not any(loop.error or loop.outside for loop in (one, none))
    hint = f"for n = 1 it gave {one}, for n = 0 {none}."
    yield Property("also for a single batch, and for none", short, hint)
    hint = (
        f"`read({FAILS_AT})` raised an error, and the consumer got {failing}. Its training would continue with "
        "only part of the data, and nobody would notice. `future.result()` raises the error again."
    )
    yield Property("an error while reading reaches the consumer", "cannot be read" in failing.error, hint)


def _kind_hint(loop: Consumed) -> str:
    if loop.not_batches == "None":
        return "it returned nothing: hand out the batches with `yield`, one at a time."
    if loop.not_batches == "a Future":
        return "it hands out a Future, the promise of a batch. Call its `result()`, which waits for the batch itself."
    return f"it gave {loop.not_batches}: hand out what `read` returns, with `yield`."


def _order_hint(loop: Consumed, right: list[int]) -> str:
    if loop.outside:
        return f"it asked for batch {loop.outside[0]}, but the last one is {right[-1]}."
    if loop.error:
        return f"after {loop.got} it ended with {loop.error}."
    if loop.got == right[:-1]:
        return "the last batch is missing: when the loop ends, one is still to come."
    if loop.got == right[1:]:
        return "batch 0 is missing: submit its read before the loop."
    if len(loop.got) > len(set(loop.got)):
        return f"it handed out {loop.got}, some of them twice. Is the next read submitted with the next number?"
    if sorted(loop.got, key=str) == right:
        return f"they came as {loop.got}: hand them out in order, whichever was read first."
    return f"it handed out {loop.got} instead of {right}."


prefetch = Exercise(
    "prefetch",
    observe_loops,
    loops_properties,
    communicates=False,
    stuck=(
        "the loop over the batches waits for one that never comes. Does the thread end silently after an error in "
        "`read`, or after the last batch? `future.result()` raises the error again."
    ),
)
