"""The exercises of 00_start_here: which rank am I, and which items are mine."""

from collections.abc import Callable, Iterator

from workshop_lib.judge.play import Edit, played
from workshop_lib.words import plural

NOTEBOOK = "00_start_here"
SHARED = [(n, size) for n in (7, 8, 100, 1, 0) for size in (1, 2, 3, 5)]  # (items, ranks)
GIVEN_COMM = "Take both numbers from the `comm` that you are given, not from COMM_WORLD, and do not hard-code them."


def play_whoami(whoami: Callable, comm) -> Iterator[tuple]:
    """Call it with all ranks, with the same ranks numbered the other way round, and with each rank alone.

    The last two calls catch answers that ignore their argument.
    """
    backwards = comm.Split(0, -comm.rank)
    alone = comm.Split(comm.rank)
    of_all, of_backwards, of_alone = [whoami(given) for given in (comm, backwards, alone)]
    backwards.Free()
    alone.Free()
    yield "rank and size are right on every rank", of_all
    yield "also when the same ranks are numbered the other way round", of_backwards, "", GIVEN_COMM
    yield "also when a rank is alone", of_alone, "", GIVEN_COMM


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
    parts = [(n, size, [my_part(n, rank, size) for rank in range(size)]) for n, size in SHARED]
    fractions = [pair for *_, of_ranks in parts for pair in of_ranks if any(int(bound) != bound for bound in pair)]
    observed = f"{fractions[0]} isn't whole:" if fractions else ""
    advice = "`//` divides and drops the remainder, `/` keeps a fraction."
    yield "both are whole numbers", not fractions, observed, advice
    for text, problem in (
        ("no item is left out", _left_out),
        ("no item is taken twice", _taken_twice),
        ("the parts' sizes differ by at most one", _uneven),
    ):
        problems = [problem(*shared) for shared in parts]
        yield text, problems, next(filter(None, problems), "")


def _left_out(n: int, size: int, of_ranks: list) -> str:
    left = [item for item in range(n) if not any(start <= item < stop for start, stop in of_ranks)]
    return f"of {n} items for {plural(size, 'rank')}, nobody takes {_items(left)}." if left else ""


def _taken_twice(n: int, size: int, of_ranks: list) -> str:
    twice = [item for item in range(n) if sum(start <= item < stop for start, stop in of_ranks) > 1]
    outside = [pair for pair in of_ranks if pair[0] < pair[1] and (pair[0] < 0 or pair[1] > n)]
    if twice:
        return f"of {n} items for {size} ranks, more than one rank takes {_items(twice)}."
    if outside:
        return f"of {n} items, numbered from 0, a rank takes those from {outside[0][0]} to {outside[0][1] - 1}."
    return ""


def _uneven(n: int, size: int, of_ranks: list) -> str:
    sizes = [max(0, stop - start) for start, stop in of_ranks]
    return f"{n} items were shared out as {', '.join(map(str, sizes))}." if max(sizes) - min(sizes) > 1 else ""


def _items(items: list[int]) -> str:
    listed = ", ".join(map(str, items[:4])) + (", …" if len(items) > 4 else "")
    return f"item {listed}" if len(items) == 1 else f"items {listed}"


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
            "Rounding up leaves too little for the last ranks: part sizes may differ by at most one.",
            (START, "min(n, rank * -(-n // size))"),
            (STOP, "min(n, (rank + 1) * -(-n // size))"),
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
