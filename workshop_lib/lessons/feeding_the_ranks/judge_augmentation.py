"""Judges `generator`, the third exercise of 09_feeding_the_ranks: repeatable random numbers per rank and step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from workshop_lib.judge import Exercise, Mistake, Property, shown

SEED = 7
RANKS = 3
STEPS = 4
DRAWS = 3


@dataclass
class Drawn:
    """The first numbers that the generator of each rank and step draws: arrays [ranks, steps, draws]."""

    other: str = ""  # what the function returned instead of a generator
    first: np.ndarray = field(default_factory=lambda: np.zeros(0))
    again: np.ndarray = field(default_factory=lambda: np.zeros(0))  # requested in reverse order
    other_seed: np.ndarray = field(default_factory=lambda: np.zeros(0))
    one: bool = False  # whether two ranks in different steps get the same generator object


def observe(comm, function: Callable) -> Drawn:
    """What the generators of all ranks and steps draw: twice with one seed, and once with a different seed."""
    places = [(rank, step) for rank in range(RANKS) for step in range(STEPS)]
    if not isinstance(sample := function(SEED, 0, 0), np.random.Generator):
        return Drawn(other=shown(sample))

    def drawn(seed: int, order: list) -> np.ndarray:
        numbers = {place: function(seed, *place).random(DRAWS) for place in order}
        return np.stack([numbers[place] for place in places]).reshape(RANKS, STEPS, DRAWS)

    one = function(SEED, 0, 1) is function(SEED, 1, 0)
    return Drawn("", drawn(SEED, places), drawn(SEED, places[::-1]), drawn(SEED + 1, places), one)


def same(numbers: np.ndarray) -> list[int]:
    """For each rank and step, the first position that draws the same numbers. Equal lists mean equal mistakes."""
    rows = numbers.reshape(-1, DRAWS).tolist()
    return [rows.index(row) for row in rows]


def properties(observations: list[Drawn]) -> Iterator[Property]:
    seen = observations[0]
    hint = "it returned nothing: `return` the generator." if seen.other == "None" else f"it returned {seen.other}."
    yield Property("it returns a NumPy generator", not seen.other, hint)
    repeated = bool(np.array_equal(seen.first, seen.again))
    yield Property("asked again, it draws the same numbers, so a run can be resumed", repeated, evidence=seen.one)
    pattern = same(seen.first)
    of_step = [[pattern[rank * STEPS + step] for rank in range(RANKS)] for step in range(STEPS)]
    apart = all(len(set(ranks)) == RANKS for ranks in of_step)
    yield Property("in each step, every rank draws different numbers", apart, evidence=pattern)
    of_rank = [pattern[rank * STEPS : (rank + 1) * STEPS] for rank in range(RANKS)]
    apart = all(len(set(steps)) == STEPS for steps in of_rank)
    yield Property("each rank draws different numbers in every step", apart, evidence=pattern)
    apart = len(set(pattern)) == RANKS * STEPS
    yield Property("no rank draws what a different rank drew in a different step", apart, evidence=pattern)
    apart = not np.array_equal(seen.first, seen.other_seed)
    yield Property("a different seed draws different numbers", apart, "use the seed, too: else all runs draw the same.")


_kept = np.random.default_rng(SEED)
_ADDED = "a sum isn't enough: rank 1 in step 0 draws what rank 0 draws in step 1. Give all of them, as a list."
generator = Exercise(
    "generator",
    observe,
    properties,
    [
        Mistake(
            lambda seed, rank, step: np.random.default_rng(),
            "without a seed it draws different numbers after a restart, and nobody can repeat the run.",
        ),
        Mistake(
            lambda seed, rank, step: _kept,
            "one generator for all calls: what it draws depends on the calls before, which a restart forgets.",
        ),
        Mistake(
            lambda seed, rank, step: np.random.default_rng(seed),
            "all ranks draw the same in every step: the first image always moves in the same way, on every rank.",
        ),
        Mistake(
            lambda seed, rank, step: np.random.default_rng([seed, step]),
            "all ranks draw alike: image i moves in the same way on each of them. Use the rank, too.",
        ),
        Mistake(
            lambda seed, rank, step: np.random.default_rng([seed, rank]),
            "it starts over in each step: the first image of every batch moves in the same way. Use the step, too.",
        ),
        Mistake(lambda seed, rank, step: np.random.default_rng(seed + rank + step), _ADDED),
        Mistake(
            lambda seed, rank, step: np.random.default_rng(seed + rank * step),
            "on rank 0 the step doesn't matter, nor the rank in step 0. Give all of them, as a list.",
        ),
    ],
    communicates=False,
    unknown="`np.random.default_rng` also takes a list of numbers, and a different list draws different numbers.",
)
