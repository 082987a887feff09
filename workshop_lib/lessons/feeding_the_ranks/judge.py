"""Judges two exercises of 09_feeding_the_ranks: `my_bytes`, a rank's part of a file, and `prefetch`.

The third exercise, `generator`, is judged in judge_augmentation.py.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from workshop_lib.judge import Exercise, Property, shown
from workshop_lib.judge.play import Edit, played


class File(NamedTuple):
    rows: int
    row_bytes: int
    header_bytes: int
    size: int

    def __str__(self) -> str:
        return f"{self.rows:,} rows of {self.row_bytes} bytes, header of {self.header_bytes}, on {self.size} rank(s)"


FILES = [File(12, 5, 16, 3), File(10, 5, 16, 4), File(60_000, 784, 16, 7), File(8, 3, 0, 1), File(2, 784, 16, 4)]
BATCHES = 6
READ_S = 0.005
LATE_S = 0.3  # how long the consumer computes at most while it waits for the next read to begin
STILL_S = 0.03  # if no read begins for this long, no more reads are coming
FAILS_AT = 2
MOST_AHEAD = 2  # one batch that is ready, and one that is being read


def play_parts(my_bytes: Callable, comm) -> Iterator[tuple]:
    by_file = [
        [my_bytes(file.rows, file.row_bytes, file.header_bytes, rank, file.size) for rank in range(file.size)]
        for file in FILES
    ]
    first = next((_fraction(part) for parts in by_file for part in parts if _fraction(part)), "")
    yield "it returns two whole numbers", first, first, "`//` divides whole numbers, but `/` makes a fraction."
    for text, problem_of in (
        ("the header belongs to nobody", _header),
        ("each part begins and ends between two rows", _torn),
        ("every row is read once, even where the ranks do not divide the rows", _cover),
        ("no rank reads two rows more than another", _balance),
    ):
        problems = [(file, problem_of(file, parts)) for file, parts in zip(FILES, by_file, strict=True)]
        first = next((f"{file}: {problem}:" for file, problem in problems if problem), "")
        yield text, first, first


def _fraction(part: tuple) -> str:
    return "" if all(isinstance(number, Integral) for number in part) else f"it returned {shown(part)}:"


def _header(file: File, parts: list) -> str:
    first = min(offset for offset, _ in parts)
    return "" if first == file.header_bytes else f"the first part begins at {first}"


def _torn(file: File, parts: list) -> str:
    for rank, (offset, nbytes) in enumerate(parts):
        if (offset - file.header_bytes) % file.row_bytes or nbytes % file.row_bytes:
            return f"rank {rank} begins at {offset} and reads {nbytes} bytes"
    return ""


def _cover(file: File, parts: list) -> str:
    taken: list[int] = []
    for rank, (offset, nbytes) in enumerate(parts):
        first = (offset - file.header_bytes) // file.row_bytes
        count = nbytes // file.row_bytes
        if count < 0:
            return f"rank {rank} reads {nbytes} bytes"
        if count and first + count > file.rows:
            end = file.header_bytes + file.rows * file.row_bytes
            return f"rank {rank} reads up to {offset + nbytes}, but the file ends at {end}"
        taken += range(first, first + count)
    missing = file.rows - len(set(taken))
    twice = len(taken) - len(set(taken))
    if twice:
        return f"several ranks read the same rows, {twice} too many"
    return f"nobody reads {missing} of the rows" if missing else ""


def _balance(file: File, parts: list) -> str:
    counts = [nbytes // file.row_bytes for _, nbytes in parts]
    return f"the ranks read {counts} rows" if max(counts) - min(counts) > 1 else ""


ROWS = "rows * rank // size, rows * (rank + 1) // size"
EACH = "rows // size"
ROUNDED_UP = "-(-rows // size)"
OFFSET = "header_bytes + first * row_bytes"
BYTES = "(end - first) * row_bytes"
BALANCE = "all wait for the rank with the most rows. Spread the leftover rows, as `rows * rank // size` does."
my_bytes = played(
    "my_bytes",
    "09_feeding_the_ranks",
    play_parts,
    [
        Edit("the header comes first: rank 0 would take it for pixels.", (OFFSET, "first * row_bytes")),
        Edit("the header is counted twice in the offset.", (OFFSET, f"header_bytes + {OFFSET}")),
        Edit(
            "the header is counted in the number of bytes, but it only moves the offset.",
            (BYTES, f"header_bytes + {BYTES}"),
        ),
        Edit("that counts its rows: multiply by `row_bytes`.", (BYTES, "end - first")),
        Edit("a row is torn in two: the offset counts rows, not bytes.", (OFFSET, "header_bytes + first")),
        Edit(
            "a row is torn in two. Share out rows first, then turn them into bytes.",
            (ROWS, ROWS.replace("rows", "rows * row_bytes")),
            (OFFSET, "header_bytes + first"),
            (BYTES, "end - first"),
        ),
        Edit("return a count of bytes, rather than where they end.", (BYTES, "end * row_bytes")),
        Edit("`rows // size` leaves some rows over. Who reads them?", (ROWS, f"{EACH} * rank, {EACH} * (rank + 1)")),
        Edit(
            "the number of rows per rank is rounded up. Does the last rank take fewer?",
            (ROWS, f"{ROUNDED_UP} * rank, {ROUNDED_UP} * (rank + 1)"),
        ),
        Edit("every rank reads all rows: begin where the previous rank ends.", (ROWS, "0, rows")),
        Edit(
            "each rank also reads the first row of the next one: leave out the row at which that one begins.",
            (ROWS, f"{ROWS} + (rank < size - 1)"),
        ),
        Edit(BALANCE, (ROWS, f"{EACH} * rank, {EACH} * (rank + 1) if rank < size - 1 else rows")),
        Edit(BALANCE, (ROWS, f"min(rows, {ROUNDED_UP} * rank), min(rows, {ROUNDED_UP} * (rank + 1))")),
    ],
    returns="offset, bytes",
    communicates=False,
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
