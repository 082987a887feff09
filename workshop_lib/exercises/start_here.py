"""Checks of the exercises in 00_start_here."""

from workshop_lib.notebook.checks import Verdict, judged
from workshop_lib.probes import start_here as probes


def whoami(function) -> Verdict:
    """`whoami(comm)` returns this rank's number in `comm`, and the number of ranks in it."""
    return judged(function, probes.whoami, _judge_whoami)


def my_part(function) -> Verdict:
    """`my_part(n, rank, size)` returns (start, stop) of the items that `rank` takes."""
    return judged(function, probes.my_part, _judge_my_part)


def _judge_whoami(facts: list[dict]):
    of_all, backwards, alone = ([fact["rows"][case] for fact in facts] for case in range(3))
    returned = [row["returned"] for row in of_all]
    hint = f"rank 0 returned {returned[0]!r}."
    if None in returned:
        hint = "there is no `return`: what is printed is seen, but not handed back."
    elif isinstance(returned[0], str):
        hint = f"rank 0 returned the text {returned[0]!r}: return two numbers, `a, b`."
    yield "it returns two numbers", all(isinstance(pair, tuple) and len(pair) == 2 for pair in returned), hint

    wrong = next((row for row in of_all if row["returned"] != row["right"]), of_all[0])
    hint = f"{wrong['returned']} was returned where {wrong['right']} is right."
    if wrong["returned"] == wrong["right"][::-1]:
        hint += " The rank comes first, then the size."
    elif wrong["returned"][0] == wrong["right"][0] + 1:
        hint += " Ranks are counted from 0."
    yield "rank and size are right on every rank", wrong["returned"] == wrong["right"], hint

    for text, rows in (
        ("also when the same ranks are numbered the other way round", backwards),
        ("also when a rank is alone", alone),
    ):
        bad = [(r, row) for r, row in enumerate(rows) if row["returned"] != row["right"]]
        hint = ""
        if bad:
            rank, row = bad[0]
            hint = (
                f"rank {rank} returned {row['returned']} where {row['right']} is right. Take both from "
                "the `comm` that was given, not from COMM_WORLD and not by heart."
            )
        yield text, not bad, hint


def _judge_my_part(facts: list[dict]):
    parts = facts[0]
    pairs = [pair for of_ranks in parts.values() for pair in of_ranks]
    hint = "there is no `return`." if None in pairs else f"it returned {pairs[-1]!r}."
    yield "it returns start and stop", all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs), hint

    odd = next((pair for pair in pairs if any(int(bound) != bound for bound in pair)), None)
    hint = f"{odd} is not whole: `//` divides and drops what is left over, `/` does not."
    yield "both are whole numbers", odd is None, hint

    for text, problem in (
        ("no item is left out", _left_out),
        ("no item is taken twice", _taken_twice),
        ("the parts' sizes differ by at most one", _uneven),
    ):
        found = next((hint for case in parts.items() if (hint := problem(*case))), "")
        yield text, not found, found


def _taken(n: int, of_ranks: list) -> list[int]:
    """How many ranks take each of the n items."""
    return [sum(start <= item < stop for start, stop in of_ranks) for item in range(n)]


def _left_out(case: tuple[int, int], of_ranks: list) -> str:
    n, size = case
    left = [item for item, times in enumerate(_taken(n, of_ranks)) if times == 0]
    if not left:
        return ""
    told = f"of {n} items for {size} rank{'s' * (size > 1)}, nobody takes {_items(left)}. "
    if left == list(range(n - len(left), n)) and len(left) == n % size:
        return told + "`n // size` items for each rank leave `n % size` over: share those out, one a rank."
    if all(stop == start + n // size - 1 for start, stop in of_ranks):
        return told + "stop is the first item that the rank does *not* take, as in range(start, stop)."
    return told + "Does each rank start where the one before it stops, and the last one stop at n?"


def _taken_twice(case: tuple[int, int], of_ranks: list) -> str:
    n, size = case
    twice = [item for item, times in enumerate(_taken(n, of_ranks)) if times > 1]
    outside = [pair for pair in of_ranks if pair[0] < pair[1] and (pair[0] < 0 or pair[1] > n)]
    if twice:
        return (
            f"of {n} items for {size} ranks, {_items(twice)} "
            f"{'belongs' if len(twice) == 1 else 'belong'} to more than one rank. "
            "Does each rank start where the one before it stops?"
        )
    if outside:
        return f"of {n} items, numbered from 0, a rank takes those from {outside[0][0]} to {outside[0][1] - 1}."
    return ""


def _uneven(case: tuple[int, int], of_ranks: list) -> str:
    n, size = case
    sizes = [max(0, stop - start) for start, stop in of_ranks]
    if max(sizes) - min(sizes) <= 1:
        return ""
    told = f"{n} items were shared out as {', '.join(map(str, sizes))}. "
    if sizes[-1] == max(sizes):
        return told + "The last rank takes all that is left over: give one of it to each of the first ranks."
    return told + "The largest part must be at most one larger than the smallest: the others wait for it."


def _items(items: list[int]) -> str:
    shown = ", ".join(map(str, items[:4])) + (", …" if len(items) > 4 else "")
    return f"item {shown}" if len(items) == 1 else f"items {shown}"
