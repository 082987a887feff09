"""How 11b_pipelines checks its exercises: a stage (judge_stage.py), three schedules (here) and a cut (judge_cuts.py).

A simulator runs the learner's schedule. The schedule passes if all ranks reach the end of their lists, keep no more
than they have to, and are idle no longer than necessary.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from workshop_lib.judge import Exercise, Property, own_or_solution, shown
from workshop_lib.judge.play import Edit, edited
from workshop_lib.lessons.pipelines import orders
from workshop_lib.lessons.pipelines.judge_cuts import balanced
from workshop_lib.lessons.pipelines.judge_stage import MyStage

__all__ = ["MyStage", "balanced", "gpipe", "interleaved", "one_f_one_b", "written"]

NOTEBOOK = "11b_pipelines"
written = partial(own_or_solution, notebook=NOTEBOOK)

CASES = [(2, 4), (4, 8), (3, 5), (4, 4), (1, 3), (4, 2)]  # (ranks, micro-batches)
CHUNKED = [(2, 4, 2), (4, 8, 2), (2, 2, 3), (3, 6, 2), (1, 2, 2)]  # (ranks, micro-batches, chunks)


class Seen(NamedTuple):
    """What a schedule returned for one case: `orders` has a list of operations per rank, or text for anything else."""

    ranks: int
    micro_batches: int
    chunks: int
    orders: list

    @property
    def name(self) -> str:
        return f"{self.ranks} ranks and {self.micro_batches} micro-batches"


def observe_schedule(comm, function: Callable) -> list[Seen]:
    return [Seen(p, m, 1, [_plain(function(rank, p, m)) for rank in range(p)]) for p, m in CASES]


def observe_chunked(comm, function: Callable) -> list[Seen]:
    return [Seen(p, m, v, [_plain(function(rank, p, m, v)) for rank in range(p)]) for p, m, v in CHUNKED]


def _plain(returned) -> list[tuple] | str:
    try:
        operations = [tuple(each) for each in returned]
        if all(each[0] in ("F", "B") and all(number == int(number) for number in each[1:]) for each in operations):
            return [(kind, *map(int, numbers)) for kind, *numbers in operations]
    except (TypeError, ValueError, IndexError):
        pass
    return shown(returned)


def _operations(seen: Seen) -> Counter:
    numbers = [range(seen.micro_batches)]
    if seen.chunks > 1:
        numbers.append(range(seen.chunks))
    return Counter((kind, *each) for kind in "FB" for each in itertools.product(*numbers))


FORM_HINT = 'Return a list of pairs such as ("F", 0): "F" or "B", and the number of a micro-batch.'
CHUNK_FORM_HINT = 'Return a list such as [("F", 0, 1)]: "F" or "B", the number of a micro-batch, and that of a chunk.'
NO_FORWARD_HINT = "A rank has nothing to go backward with before its own forward."


def _runs(cases: list[Seen], form_hint: str) -> Iterator[Property]:
    """Check what every schedule needs: the right form, each operation exactly once, and ranks that all finish."""
    others = (order for seen in cases for order in seen.orders if isinstance(order, str))
    yield Property.unless("it returns operations", (f"it returned {other}. {form_hint}" for other in others))
    yield Property.unless("each micro-batch goes forward once, and backward once", _miscounted(cases))
    stuck = [(seen, text) for seen in cases for text in orders.simulate(seen.orders).stuck.values()]
    stuck.sort(key=lambda each: "before it went forward" not in each[1])  # causes before consequences
    observed = f"With {stuck[0][0].name}, {stuck[0][1]}." if stuck else ""
    early = any("before it went forward" in text for _, text in stuck)
    hint = f"{observed} {NO_FORWARD_HINT}" if early and cases[0].chunks == 1 else ""
    evidence = [(seen.name, text) for seen, text in stuck]
    yield Property("all ranks get to the end", not stuck, hint, evidence, observed)


def _miscounted(cases: list[Seen]) -> Iterator[str]:
    for seen in cases:
        for rank, order in enumerate(seen.orders):
            missing = _operations(seen) - Counter(order)
            extra = Counter(order) - _operations(seen)
            if missing or extra:
                what = f"lacks {min(missing)}" if missing else f"has {min(extra)} too often"
                yield f"with {seen.name}, the order of rank {rank} {what}."


def _idle(cases: list[Seen], text: str) -> Property:
    """Check that the bubble is as short as it can be."""
    measured = [(seen, orders.bubble(orders.simulate(seen.orders).spans)) for seen in cases]
    longer = [
        (seen, share, best)
        for seen, share in measured
        if share > (best := orders.bubble_formula(seen.ranks, seen.micro_batches, seen.chunks)) + 1e-9
    ]
    observed = ""
    if longer:
        seen, share, best = longer[0]
        observed = f"With {seen.name}, the ranks are idle for {share:.0%} of the time, but {best:.0%} is enough."
    return Property(text, not longer, evidence=[round(share, 9) for _, share in measured], observed=observed)


def _kept_too_many(cases: list[Seen], enough: Callable[[Seen, int], int], unit: str, hint: str) -> Iterator[str]:
    """Yield a sentence for each rank that keeps more at once than `enough(seen, rank)`."""
    for seen in cases:
        for rank, order in enumerate(seen.orders):
            most = orders.most_alive(order)
            limit = enough(seen, rank)
            if most > limit:
                yield f"with {seen.name}, rank {rank} keeps up to {most}{unit}, but {limit} is enough. {hint}"


ORDER_HINT = "Go backward in the same order on every rank, or a rank waits for a gradient that comes later."
MIXED_HINT = "GPipe goes forward with all micro-batches before it goes backward with the first."


def gpipe_properties(observations: list[list[Seen]]) -> Iterator[Property]:
    cases = observations[0]
    yield from _runs(cases, FORM_HINT)
    kinds = ["".join(kind for kind, *_ in order) for seen in cases for order in seen.orders]
    yield Property("all forwards come first", not any("BF" in each for each in kinds), MIXED_HINT)
    yield _idle(cases, "no rank is idle longer than (p − 1) / (m + p − 1)")


gpipe = Exercise("gpipe", observe_schedule, gpipe_properties, communicates=False, unknown=ORDER_HINT)

TOO_MANY_HINT = (
    "Start with as many forwards as there are ranks *behind* you, then one forward and one backward in turn."
)
TOO_FEW_HINT = "Go forward `ranks - 1 - rank` times before you begin to take turns, so that no rank runs out of work."


def one_f_one_b_properties(observations: list[list[Seen]]) -> Iterator[Property]:
    cases = observations[0]
    yield from _runs(cases, FORM_HINT)
    many = _kept_too_many(cases, lambda seen, rank: min(seen.micro_batches, seen.ranks - rank), "", TOO_MANY_HINT)
    yield Property.unless("a rank keeps no more than min(m, p − rank) micro-batches", many)
    yield _idle(cases, "the ranks are idle no longer than with GPipe")


AHEAD = "ahead = min(m, ranks - 1 - rank)"
one_f_one_b = Exercise(
    "one_f_one_b",
    observe_schedule,
    one_f_one_b_properties,
    edited(
        "one_f_one_b",
        NOTEBOOK,
        [
            Edit(TOO_FEW_HINT, (AHEAD, "ahead = max(0, min(m, ranks - 2 - rank))")),
            Edit(TOO_FEW_HINT, (AHEAD, "ahead = 0")),
            Edit(
                "The first rank has to go ahead the furthest, and the last one not at all.",
                (AHEAD, "ahead = min(m, rank)"),
            ),
        ],
    ),
    communicates=False,
    unknown="The first backward can't start before the last rank has had a micro-batch; until then, go forward.",
)

BREADTH_HINT = (
    "Take turns between chunks after every `ranks` micro-batches, and begin to go backward as soon as you can."
)
ONE_CHUNK_HINT = (
    "the chunks take turns: `ranks` micro-batches in chunk 0, the same in chunk 1, and so on, then the next."
)


def interleaved_properties(observations: list[list[Seen]]) -> Iterator[Property]:
    cases = observations[0]
    yield from _runs(cases, CHUNK_FORM_HINT)
    yield _idle(cases, "the ranks are idle no longer than (p − 1) / (v m + p − 1)")

    def enough(seen: Seen, rank: int) -> int:
        ahead = 2 * (seen.ranks - 1 - rank) + (seen.chunks - 1) * seen.ranks
        return min(seen.micro_batches * seen.chunks, ahead + 1)

    yield Property.unless("and keep no more than they have to", _kept_too_many(cases, enough, " pieces", BREADTH_HINT))


def pieces_kept(cases: list[Seen]) -> int:
    """The most micro-batches (times chunks) that a rank keeps at once, summed over all ranks and cases."""
    return sum(orders.most_alive(order) for seen in cases for order in seen.orders)


FURTHER = "2 * (ranks - 1 - rank) + (chunks - 1) * ranks"
interleaved = Exercise(
    "interleaved",
    observe_chunked,
    interleaved_properties,
    edited(
        "interleaved",
        NOTEBOOK,
        [
            Edit(
                "Backward begins with the last chunk, where the loss is: its turn is `chunks - 1 - turn`.",
                ("chunks - 1 - chunk", "chunk"),
            ),
            Edit(f"Go ahead `{FURTHER}` times, each time with one chunk.", (FURTHER, "2 * (ranks - 1 - rank)")),
        ],
    ),
    communicates=False,
    unknown=ONE_CHUNK_HINT,
    score=lambda observations, passed: pieces_kept(observations[0]) if passed else None,
)
