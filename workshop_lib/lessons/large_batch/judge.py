"""The exercises of 07_large_batch: the learning rate for many workers, a recipe of the learner's own (own_recipe.py),
and recipes to diagnose and cure (recipe_clinic.py).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.large_batch.own_recipe import judge as recipe
from workshop_lib.lessons.large_batch.own_recipe import train as train_recipe
from workshop_lib.lessons.large_batch.recipe_clinic import changes, diagnoses, options, patients, treat
from workshop_lib.words import plural

__all__ = ["changes", "diagnoses", "learning_rate", "options", "patients", "recipe", "train_recipe", "treat"]

NOTEBOOK = "07_large_batch"
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
    text = "during the warm-up, it climbs to that in equal steps"
    yield from _rates(learning_rate, text, RECIPE, range(warmup))
    for other in OTHER_RECIPES:
        yield from _rates(learning_rate, "also with a short warm-up, and with none", other, range(STEPS))


def _rates(learning_rate: Callable, text: str, told: RateCase, steps: range) -> Iterator[tuple]:
    for step in steps:
        workers = plural(told.workers, "worker")
        warmup = plural(told.warmup_steps, "warm-up step")
        case = f"with base rate {told.base_lr:g}, {workers} and {warmup}, in step {step}"
        yield text, learning_rate(step, *told), case


SHARE = "min(1, (step + 1) / warmup_steps) if warmup_steps else 1"
RATE = "base_lr * workers * share"
learning_rate = played(
    "learning_rate",
    NOTEBOOK,
    play_learning_rate,
    [
        Edit("that's the rate of one worker. Multiply it by `workers`.", (RATE, "base_lr * share")),
        Edit(
            "it climbs beyond the peak. Stop it with `min(…, 1)` or an `if`.",
            (SHARE, "(step + 1) / max(1, warmup_steps)"),
        ),
        Edit("that's already the peak, so there's no warm-up.", (SHARE, "1")),
        Edit(
            "a rate of zero wastes the first step. Steps count from 0, so divide `step + 1`.",
            (SHARE, "min(1, step / max(1, warmup_steps))"),
        ),
        Edit(
            "it climbs from the base rate. Here it should climb from 0, by an equal part in each step.",
            (RATE, "(base_lr + base_lr * (workers - 1) * share)"),
        ),
    ],
    returns="the rate",
    communicates=False,
)
