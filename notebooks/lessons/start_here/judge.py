"""The exercises of 00_start_here: which rank am I, and which items are mine."""

from collections.abc import Callable, Iterator

from workshop_lib.exercises.play import Edit, played
from workshop_lib.words import plural

NOTEBOOK = "00_start_here"
SHARED = [(n, size) for n in (7, 8, 100, 1, 0) for size in (1, 2, 3, 5)]  # (items, ranks)


def play_whoami(whoami: Callable, comm) -> Iterator[tuple]:
    yield "rank and size are right on every rank", whoami(comm)


RANK_AND_SIZE = "comm.rank, comm.size"
whoami = played(
    "whoami",
    NOTEBOOK,
    play_whoami,
    [
        Edit("The rank comes first, then the size.", (RANK_AND_SIZE, "comm.size, comm.rank")),
        Edit("Ranks are numbered from 0.", (RANK_AND_SIZE, "comm.rank + 1, comm.size")),
        Edit("The size counts all ranks, including rank 0.", (RANK_AND_SIZE, "comm.rank, comm.size - 1")),
    ],
    returns="this rank's number, and how many ranks there are",
    unknown="`comm.rank` is this rank's number, and `comm.size` how many ranks there are.",
)


def play_my_part(my_part: Callable, comm) -> Iterator[tuple]:
    shared = []
    for n, size in SHARED:
        parts = [my_part(n, rank, size) for rank in range(size)]
        shared.append((n, parts, f"{n} items for {plural(size, 'rank')} were shared out as {parts}."))
    are_whole = all(int(bound) == bound for _, parts, _ in shared for part in parts for bound in part)
    yield "both are whole numbers", are_whole, "", "`//` divides and drops the remainder, `/` keeps a fraction."
    for n, parts, observed in shared:
        left = [item for item in range(n) if not any(start <= item < stop for start, stop in parts)]
        yield "no item is left out", left, observed
    for _, parts, observed in shared:
        yield "no item is taken twice", sum(_sizes(parts)), observed
    for _, parts, observed in shared:
        yield "the parts' sizes differ by at most one", max(_sizes(parts)) - min(_sizes(parts)) <= 1, observed


def _sizes(parts: list) -> list[int]:
    return [max(0, stop - start) for start, stop in parts]


START = "n * rank // size"
STOP = "n * (rank + 1) // size"
FLOOR_START = (START, "rank * (n // size)")
my_part = played(
    "my_part",
    NOTEBOOK,
    play_my_part,
    [
        Edit(
            "`n // size` items per rank leave `n % size` over: give each of the first ranks one of these.",
            FLOOR_START,
            (STOP, "(rank + 1) * (n // size)"),
        ),
        Edit(
            "`stop` is the first item that the rank does *not* take, as in range(start, stop).", (STOP, f"{STOP} - 1")
        ),
        Edit(
            "The last rank takes everything left over: give each of the first ranks one of these items.",
            FLOOR_START,
            (STOP, "n if rank == size - 1 else (rank + 1) * (n // size)"),
        ),
    ],
    returns="start, stop",
    communicates=False,
    unknown="Each rank should start where the one before it stops, the last should stop at n, and sizes may differ by "
    "at most one.",
)
