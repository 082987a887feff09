"""How 11b_pipelines checks `balanced`: cut a network into stages so that the slowest stage is as fast as possible."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from workshop_lib.judge import Exercise, Mistake, Property, shown

SECONDS = [  # (seconds of each layer, number of stages)
    ([1.0, 1.0, 1.0, 1.0], 2),
    ([5.0, 1.0, 1.0, 1.0, 1.0, 1.0], 2),
    ([1.0, 1.0, 1.0, 6.0, 1.0, 2.0, 2.0], 3),
    ([2.0, 3.0, 4.0], 3),
    ([1.0, 1.0, 5.0, 1.0, 4.0, 2.0], 3),
    ([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0], 4),
    ([7.0, 2.0], 1),
]


def observe_balanced(comm, function: Callable) -> list:
    return [_counts(function(list(seconds), stages)) for seconds, stages in SECONDS]


def _counts(returned) -> list[int] | str:
    try:
        if all(number == int(number) for number in returned):
            return [int(number) for number in returned]
    except (TypeError, ValueError):
        pass
    return shown(returned)


def slowest(seconds: Sequence[float], counts: Sequence[int]) -> float:
    """Seconds that the slowest stage takes, where `counts` says how many layers each stage has."""
    ends = [sum(counts[: at + 1]) for at in range(len(counts))]
    return max(sum(seconds[end - count : end]) for end, count in zip(ends, counts, strict=True))


def _cuts(layers: int, stages: int) -> Iterator[list[int]]:
    for places in itertools.combinations(range(1, layers), stages - 1):
        edges = [0, *places, layers]
        yield [end - start for start, end in itertools.pairwise(edges)]


def best_counts(seconds: Sequence[float], stages: int) -> list[int]:
    """How many layers each stage gets, so that the slowest stage is as fast as possible."""
    return min(_cuts(len(seconds), stages), key=lambda counts: slowest(seconds, counts))


COUNTS_HINT = "Return how many layers each stage gets, a list of `stages` whole numbers, each at least 1."
EVEN_HINT = "The same number of layers isn't the same time: compare the seconds."
GREEDY_HINT = "Filling one stage after the other up to the mean leaves too much for the last: compare whole cuts."
LIGHTEST_HINT = "The slowest stage sets the pace, so make the largest of the stages' times as small as you can."


def balanced_properties(observations: list[list]) -> Iterator[Property]:
    answers = observations[0]
    others = (f"it returned {each}. {COUNTS_HINT}" for each in answers if isinstance(each, str))
    yield Property.unless("it returns a list of whole numbers", others)
    cases = [(counts, seconds, stages) for counts, (seconds, stages) in zip(answers, SECONDS, strict=True)]
    odd = (
        f"{len(seconds)} layers in {stages} stages: it returned {counts}. {COUNTS_HINT}"
        for counts, seconds, stages in cases
        if len(counts) != stages or sum(counts) != len(seconds) or min(counts) < 1
    )
    yield Property.unless("each layer is in one stage, and each stage has a layer", odd)
    slow = [
        f"Layers of {seconds} s in {stages} stages: {counts} takes {took:g} s at the slowest stage, but {best:g} s is "
        "possible."
        for counts, seconds, stages in cases
        if (took := slowest(seconds, counts)) > (best := slowest(seconds, best_counts(seconds, stages))) + 1e-9
    ]
    observed = slow[0] if slow else ""
    even = all(max(counts) == -(-sum(counts) // len(counts)) for counts in answers)
    hint = f"{observed} {EVEN_HINT}" if even else ""
    yield Property("the slowest stage is as fast as possible", not slow, hint, answers, observed)


def _greedily(seconds: list[float], stages: int) -> list[int]:
    counts = [0]
    total = 0.0
    left = len(seconds)
    for each in seconds:
        enough = total + each > sum(seconds) / stages and counts[-1]
        if len(counts) < stages and (enough or left == stages - len(counts)):
            counts = [*counts, 0]
            total = 0.0
        counts[-1], total, left = counts[-1] + 1, total + each, left - 1
    return counts


balanced = Exercise(
    "balanced",
    observe_balanced,
    balanced_properties,
    [Mistake(_greedily, GREEDY_HINT)],
    communicates=False,
    unknown=LIGHTEST_HINT,
)
