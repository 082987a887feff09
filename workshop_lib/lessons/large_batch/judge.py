"""The exercises of 07_large_batch: the learning rate for many workers, a recipe of the learner's own (own_recipe.py),
recipes to diagnose and cure (recipe_clinic.py), and LARS's rate for each layer.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.large_batch.own_recipe import judge as recipe
from workshop_lib.lessons.large_batch.own_recipe import train as train_recipe
from workshop_lib.lessons.large_batch.recipe_clinic import changes, diagnoses, options, patients, treat
from workshop_lib.words import plural

__all__ = [
    "changes",
    "diagnoses",
    "layer_rate",
    "learning_rate",
    "options",
    "patients",
    "recipe",
    "train_recipe",
    "treat",
]

NOTEBOOK = "07_large_batch"
STEPS = 60
TRUST = 0.002
WEIGHT_DECAY = 0.3


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
BEYOND = "it climbs beyond the peak. Stop it with `min(…, 1)` or an `if`."
WASTED = "a rate of zero wastes the first step. Steps count from 0, so divide `step + 1`."
BASE = "it climbs from the base rate. Here it should climb from 0, by an equal part in each step."
learning_rate = played(
    "learning_rate",
    NOTEBOOK,
    play_learning_rate,
    [
        Edit("that's the rate of one worker. Multiply it by `workers`.", (RATE, "base_lr * share")),
        Edit(
            "that's square-root scaling. Linear scaling multiplies by `workers`.",
            (RATE, "base_lr * workers**0.5 * share"),
        ),
        Edit(
            "you divided by `workers`. More workers take fewer steps, so each step has to be longer.",
            (RATE, "base_lr / workers * share"),
        ),
        Edit(BEYOND, (SHARE, "(step + 1) / max(1, warmup_steps)")),
        Edit(BEYOND, (SHARE, "step / max(1, warmup_steps)")),
        Edit("that's already the peak, so there's no warm-up.", (SHARE, "1")),
        Edit(WASTED, (SHARE, "min(1, step / max(1, warmup_steps - 1))")),
        Edit(WASTED, (SHARE, "min(1, step / max(1, warmup_steps))")),
        Edit(
            "it reaches the peak one step late. The last step of the warm-up should already have it.",
            (SHARE, "min(1, (step + 1) / (warmup_steps + 1))"),
        ),
        Edit(
            "it stays the same during the warm-up, but should climb.",
            (RATE, "base_lr * (workers if step >= warmup_steps - 1 else 1)"),
        ),
        Edit(BASE, (RATE, "(base_lr + base_lr * (workers - 1) * share)")),
        Edit(BASE, (RATE, "(base_lr + base_lr * (workers - 1) * min(1, step / max(1, warmup_steps)))")),
    ],
    returns="the rate",
    communicates=False,
)


class DrawnLayer(NamedTuple):
    name: str
    weights: torch.Tensor
    gradient: torch.Tensor


def _layers() -> list[DrawnLayer]:
    """Return layers of several shapes: one has large gradients, and in two of them a norm is zero."""
    random = torch.Generator().manual_seed(3)
    shapes = [(5, 7), (5, 7), (4, 2, 3, 3), (4, 2, 3, 3), (3, 4)]
    *drawn, small = [torch.randn(*shape, generator=random) for shape in shapes]
    return [
        DrawnLayer("a matrix", *drawn[:2]),
        DrawnLayer("a kernel", drawn[2], 100 * drawn[3]),
        DrawnLayer("gradients of zero", small, torch.zeros(3, 4)),
        DrawnLayer("weights of zero", torch.zeros(3, 4), small),
    ]


def play_layer_rate(layer_rate: Callable, comm) -> Iterator[tuple]:
    for name, weights, gradient in _layers():
        rate = layer_rate(weights.clone(), gradient.clone(), TRUST, WEIGHT_DECAY)
        case = f"with ‖w‖ = {weights.norm():.4g} and ‖∇w‖ = {gradient.norm():.4g}"
        if weights.any() and gradient.any():
            yield f"{name}: trust × ‖w‖ / (‖∇w‖ + β ‖w‖)", rate, case
        else:
            advice = "where one of the norms is zero, return 1, so that the layer moves as in plain SGD."
            yield f"{name}: 1, as there is no ratio", rate, case, advice


NORMS = "weights.norm(), gradient.norm()"
BELOW = "(gradient_norm + weight_decay * weights_norm)"
LAYER_RATE = f"trust * weights_norm / {BELOW}"
NORM = "that isn't the norm. The norm is the square root of the sum of the squares, as `.norm()` computes it."
layer_rate = played(
    "layer_rate",
    NOTEBOOK,
    play_layer_rate,
    [
        Edit("‖w‖ / (‖∇w‖ + β ‖w‖) is right, but multiply it by the trust coefficient.", ("trust * ", "")),
        Edit("you left out the weight decay: it pulls at the weights too, with β ‖w‖.", (BELOW, "gradient_norm")),
        Edit(
            "you left out β. The decay pulls with β ‖w‖, not with all of ‖w‖.",
            (BELOW, "(gradient_norm + weights_norm)"),
        ),
        Edit("the decay is β times the norm of the weights, not β alone.", (BELOW, "(gradient_norm + weight_decay)")),
        Edit(
            "β belongs to the norm of the weights, not to that of the gradient.",
            (BELOW, "(weights_norm + weight_decay * gradient_norm)"),
        ),
        Edit(
            "a pair of parentheses is missing: divide by the whole sum, ‖∇w‖ + β ‖w‖.",
            (LAYER_RATE, "trust * (weights_norm / gradient_norm + weight_decay * weights_norm)"),
        ),
        Edit(
            "it's upside down. Large gradients should give a small rate.",
            (LAYER_RATE, f"trust * {BELOW} / weights_norm"),
        ),
        Edit(
            "these are the squares of the norms: take the root, as `.norm()` does.",
            (NORMS, "weights.norm() ** 2, gradient.norm() ** 2"),
        ),
        Edit(
            "that's trust / (‖∇w‖ + β ‖w‖). Now multiply by the norm of the weights.", (LAYER_RATE, f"trust / {BELOW}")
        ),
        Edit(
            "that's trust × ‖w‖. Now divide by what pulls at the weights, ‖∇w‖ + β ‖w‖.",
            (LAYER_RATE, "trust * weights_norm"),
        ),
        Edit(
            "you added the two before taking the norm. In the formula, the norms are added.",
            (BELOW, "(gradient + weight_decay * weights).norm()"),
        ),
        Edit(
            "one of the norms is a mean over the weights. A norm is the root of a sum, not of a mean.",
            (LAYER_RATE, f"{LAYER_RATE} / weights.numel() ** 0.5"),
        ),
        Edit(NORM, (NORMS, "weights.abs().max(), gradient.abs().max()")),
        Edit(NORM, (NORMS, "weights.abs().sum(), gradient.abs().sum()")),
        Edit(
            "that's one value per weight. A layer has a single rate, computed from the two norms.",
            (LAYER_RATE, f"trust * weights.abs() / {BELOW}"),
        ),
    ],
    returns="the layer's rate",
    communicates=False,
)
