"""The exercises of 00_start_here: which rank am I, and which items are mine."""

import operator
from collections.abc import Callable, Iterator
from functools import partial

from workshop_lib.judge import ENDLESS_HINT, Exercise, Mistake, Property
from workshop_lib.judge.calls import JudgedCall, all_right
from workshop_lib.words import plural

exactly = partial(all_right, same=operator.eq)
NO_RETURN = "there is no `return`: `print` only shows a value, `return` hands it back."
SHARED = [(n, size) for n in (7, 8, 100, 1, 0) for size in (1, 2, 3, 5)]  # (items, ranks)
GIVEN_COMM = "Take both numbers from the `comm` that you are given, not from COMM_WORLD, and do not hard-code them."


def observe_whoami(comm, function: Callable) -> list[JudgedCall]:
    """Call `function` with all ranks, with the same ranks numbered the other way round, and with each rank alone.

    The last two calls catch answers that ignore their argument.
    """
    backwards = comm.Split(0, -comm.rank)
    alone = comm.Split(comm.rank)
    calls = [JudgedCall(function(given), (given.rank, given.size)) for given in (comm, backwards, alone)]
    backwards.Free()
    alone.Free()
    return calls


def whoami_properties(observations: list[list[JudgedCall]]) -> Iterator[Property]:
    of_all, backwards, alone = zip(*observations, strict=True)
    returned = [call.returned for call in of_all]
    hint = f"rank 0 returned {returned[0]!r}: return two numbers, `a, b`."
    pairs = all(isinstance(pair, tuple) and len(pair) == 2 for pair in returned)
    yield Property("it returns two numbers", pairs, NO_RETURN if None in returned else hint)
    yield exactly("rank and size are right on every rank", of_all)
    yield exactly("also when the same ranks are numbered the other way round", backwards, GIVEN_COMM)
    yield exactly("also when a rank is alone", alone, GIVEN_COMM)


whoami = Exercise(
    "whoami",
    observe_whoami,
    whoami_properties,
    [
        Mistake(lambda comm: (comm.size, comm.rank), "The rank comes first, then the size."),
        Mistake(lambda comm: (comm.rank + 1, comm.size), "Ranks are numbered from 0."),
        Mistake(lambda comm: (comm.rank, comm.size - 1), "The size counts all ranks, including rank 0."),
    ],
    stuck=ENDLESS_HINT,
    unknown="`comm.rank` is this rank's number, and `comm.size` how many ranks there are.",
)


def observe_my_part(comm, function: Callable) -> dict[tuple[int, int], list]:
    """Return {(items, ranks): what `function` returns for each of these ranks}, for each pair in SHARED."""
    return {(n, size): [function(n, rank, size) for rank in range(size)] for n, size in SHARED}


def my_part_properties(observations: list[dict]) -> Iterator[Property]:
    parts = observations[0]
    pairs = [pair for of_ranks in parts.values() for pair in of_ranks]
    hint = NO_RETURN if None in pairs else f"it returned {pairs[-1]!r}: return two numbers, `start, stop`."
    yield Property("it returns start and stop", all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs), hint)
    fraction = next((pair for pair in pairs if any(int(bound) != bound for bound in pair)), None)
    hint = f"{fraction} isn't whole: `//` divides and drops the remainder, `/` keeps a fraction."
    yield Property("both are whole numbers", fraction is None, hint)
    for text, problem in (
        ("no item is left out", _left_out),
        ("no item is taken twice", _taken_twice),
        ("the parts' sizes differ by at most one", _uneven),
    ):
        observed = {(n, size): problem(n, size, of_ranks) for (n, size), of_ranks in parts.items()}
        first = next(filter(None, observed.values()), "")
        yield Property(text, not first, evidence=observed, observed=first)


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


def floor_parts(n: int, rank: int, size: int) -> tuple[int, int]:
    each = n // size
    return rank * each, (rank + 1) * each


def ceiling_parts(n: int, rank: int, size: int) -> tuple[int, int]:
    return floor_parts(n + size - 1, rank, size)


def ceiling_parts_within(n: int, rank: int, size: int) -> tuple[int, int]:
    start, stop = ceiling_parts(n, rank, size)
    return min(n, start), min(n, stop)


def floor_parts_rest_to_last(n: int, rank: int, size: int) -> tuple[int, int]:
    start, stop = floor_parts(n, rank, size)
    return start, n if rank == size - 1 else stop


def fair_parts(n: int, rank: int, size: int) -> tuple[int, int]:
    """Divide the items fairly. This is a right answer, and `_moved` makes wrong ones of it."""
    return n * rank // size, n * (rank + 1) // size


def _moved(parts: Callable, before: int = 0, after: int = 0) -> Callable:
    """Make a wrong `my_part`, which moves the starts and stops of `parts` by this many items."""

    def my_part(n: int, rank: int, size: int) -> tuple[int, int]:
        start, stop = parts(n, rank, size)
        return max(0, start + before), stop + after

    return my_part


_STOP = "`stop` is the first item that the rank does *not* take, as in range(start, stop)."
_OVERLAP = "Does each rank start where the one before it stops?"

my_part = Exercise(
    "my_part",
    observe_my_part,
    my_part_properties,
    [
        Mistake(
            floor_parts, "`n // size` items per rank leave `n % size` over: give each of the first ranks one of these."
        ),
        Mistake(_moved(fair_parts, after=-1), _STOP),
        Mistake(_moved(floor_parts, after=-1), _STOP),
        Mistake(_moved(fair_parts, before=-1), _OVERLAP),
        Mistake(_moved(fair_parts, after=1), _OVERLAP),
        Mistake(lambda n, rank, size: (0, n), "Every rank takes all of the items: it should take only its own part."),
        Mistake(ceiling_parts, "Rounding up gives away more items than there are: the last ranks run past the end."),
        Mistake(
            ceiling_parts_within,
            "Rounding up leaves too little for the last ranks: part sizes may differ by at most one.",
        ),
        Mistake(
            floor_parts_rest_to_last,
            "The last rank takes everything left over: give each of the first ranks one of these items.",
        ),
    ],
    communicates=False,
    unknown="Each rank should start where the one before it stops, the last should stop at n, and sizes may differ by "
    "at most one.",
)
