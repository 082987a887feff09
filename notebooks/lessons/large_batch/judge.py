"""The exercises of 07_large_batch: the learning rate for many workers, the highest safe one, a recipe of the learner's
own (own_recipe.py), and recipes to diagnose (recipe_clinic.py).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played
from workshop_lib.words import plural

from lessons.large_batch.own_recipe import judge as recipe
from lessons.large_batch.own_recipe import train as train_recipe
from lessons.large_batch.recipe_clinic import diagnoses, patients

__all__ = ["diagnoses", "learning_rate", "highest_rate", "patients", "recipe", "train_recipe", "written"]

NOTEBOOK = "07_large_batch"
written = partial(own_or_solution, notebook=NOTEBOOK)
STEPS = 60


class RateCase(NamedTuple):
    """The arguments of `learning_rate` that follow `step`."""

    base_lr: float
    workers: int
    warmup_steps: int


# Numbers that a mistake could confuse are all different.
RECIPE = RateCase(0.01, 128, 40)
OTHER_RECIPES = [RateCase(0.1, 1, 10), RateCase(0.05, 8, 1), RateCase(0.02, 4, 0)]


def play_learning_rate(learning_rate: Callable, comm) -> Iterator[tuple]:
    warmup = RECIPE.warmup_steps
    text = "after the warm-up, the rate is the base rate times the number of workers"
    yield from _rates(learning_rate, text, RECIPE, range(warmup, STEPS))
    text = "during the warm-up, it climbs from the base rate to that in equal steps"
    yield from _rates(learning_rate, text, RECIPE, range(warmup))
    for other in OTHER_RECIPES:
        yield from _rates(learning_rate, "also with a short warm-up, and with none", other, range(STEPS))


def _rates(learning_rate: Callable, text: str, told: RateCase, steps: range) -> Iterator[tuple]:
    for step in steps:
        workers = plural(told.workers, "worker")
        warmup = plural(told.warmup_steps, "warm-up step")
        case = f"with base rate {told.base_lr:g}, {workers} and {warmup}, in step {step}"
        yield text, learning_rate(step, *told), case


SHARE = "min(1, step / warmup_steps) if warmup_steps else 1"
RATE = "base_lr * (1 + (workers - 1) * share)"
learning_rate = played(
    "learning_rate",
    NOTEBOOK,
    play_learning_rate,
    [
        Edit(
            "that climbs to the rate of one worker, or stays there. Multiply the peak by `workers`.",
            (RATE, "base_lr * share"),
        ),
        Edit("it climbs beyond the peak. Stop it with `min(…, 1)` or an `if`.", (SHARE, "step / max(1, warmup_steps)")),
        Edit("that's already the peak, so there's no warm-up.", (SHARE, "1")),
        Edit("it climbs from 0, so step 0 changes nothing. Begin at `base_lr`.", (RATE, "base_lr * workers * share")),
    ],
    returns="the rate",
    communicates=False,
)


def play_highest_rate(highest_rate: Callable, comm) -> Iterator[tuple]:
    for momentum in (0.0, 0.5, 0.9):
        for nesterov in (False, True):
            kind = "Nesterov momentum" if nesterov else "momentum"
            for curvature in (4.0, 0.3):
                text = f"the limit is right with a {kind} of {momentum:g}"
                yield text, highest_rate(curvature, momentum, nesterov), f"with a curvature of {curvature:g}"
    yield "without a third argument, it's ordinary momentum", highest_rate(4.0, 0.9)


LIMIT = "2 * (1 + momentum) / curvature"
OF_NESTEROV = "limit / (1 + 2 * momentum) if nesterov else limit"
highest_rate = played(
    "highest_rate",
    NOTEBOOK,
    play_highest_rate,
    [
        Edit("the 2 is missing: without momentum, the limit is 2/λ.", (LIMIT, "(1 + momentum) / curvature")),
        Edit("that's the limit without momentum. Multiply it by 1 + m.", (LIMIT, "2 / curvature")),
        Edit(
            "1/(1 - m) is how much longer momentum makes a step in effect. The limit on the rate is 2 (1 + m)/λ.",
            (LIMIT, "2 / (1 - momentum) / curvature"),
        ),
        Edit("Nesterov momentum has a lower limit: use `nesterov`.", (OF_NESTEROV, "limit")),
        Edit(
            "Nesterov momentum has the lower limit of the two: divide by 1 + 2m.",
            (OF_NESTEROV, "limit * (1 + 2 * momentum) if nesterov else limit"),
        ),
    ],
    returns="the rate",
    communicates=False,
)
