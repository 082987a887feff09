"""The exercises of 07_large_batch: the learning rate for many workers, recipes to diagnose and cure (recipe_clinic.py),
and LARS's rate for each layer.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from workshop_lib.judge import Exercise, Mistake, Property, close, is_number, shown
from workshop_lib.lessons.large_batch.recipe_clinic import changes, diagnoses, options, patients, treat
from workshop_lib.training import optimizers, schedules

__all__ = ["changes", "diagnoses", "layer_rate", "learning_rate", "options", "patients", "treat"]

STEPS = 60
TRUST = 0.002
WEIGHT_DECAY = 0.3
ROUNDING = 1e-5  # relative tolerance for float32


class RateCase(NamedTuple):
    """The arguments of `learning_rate` that follow `step`."""

    base_lr: float
    workers: int
    warmup_steps: int


# Numbers that a mistake could confuse are all different.
RECIPES = [RateCase(0.01, 128, 40), RateCase(0.1, 1, 10), RateCase(0.05, 8, 1), RateCase(0.02, 4, 0)]


def observe_rates(comm, function: Callable) -> list[list]:
    """Return the rates that `function` gives for the first STEPS steps, for each of RECIPES."""
    return [[function(step, *recipe) for step in range(STEPS)] for recipe in RECIPES]


def rates_properties(observations: list) -> Iterator[Property]:
    by_recipe = observations[0]
    other = [rate for rates in by_recipe for rate in rates if not is_number(rate)]
    yield Property("it returns a number", not other, f"it returned {shown(other[0])}." if other else "")
    during: list[tuple] = []
    after: list[tuple] = []
    for recipe, rates in zip(RECIPES, by_recipe, strict=True):
        for step, rate in enumerate(rates):
            right = schedules.lr_at(step, STEPS, recipe.base_lr * recipe.workers, recipe.warmup_steps)
            if not close(rate, right, ROUNDING):
                (during if step < max(1, recipe.warmup_steps) else after).append((step, *recipe, rate, right))
    yield _all_right("after the warm-up, the rate is the base rate times the number of workers", after)
    yield _all_right("during the warm-up, it climbs to that in equal steps", during)


def _all_right(text: str, wrong: list[tuple]) -> Property:
    """Return a property that holds if no rate is wrong. The first two wrong rates tell mistakes apart."""
    case = "base rate {1:g}, {2} workers, {3} warm-up steps, step {0}: it should be {5:.4g}, not {4:.4g}:"
    return Property(text, not wrong, evidence=wrong[:2], observed=case.format(*wrong[0]) if wrong else "")


def _climb(step: int, warmup: int) -> float:
    return min(1, (step + 1) / max(1, warmup))


def _rate(hint: str, climb: Callable = _climb, peak: Callable = lambda base, workers: base * workers) -> Mistake:
    """Make a wrong `learning_rate`: `climb` gives its share of the peak in each step, and `peak` the peak."""
    return Mistake(lambda step, base, workers, warmup: peak(base, workers) * climb(step, warmup), hint)


def _from_base(hint: str, climb: Callable) -> Mistake:
    """Make a wrong `learning_rate` that climbs from the base rate instead of 0."""
    return Mistake(lambda step, base, workers, warmup: base + base * (workers - 1) * climb(step, warmup), hint)


_BEYOND = "it climbs beyond the peak. Stop it with `min(…, 1)` or an `if`."
_WASTED = "a rate of zero wastes the first step. Steps count from 0, so divide `step + 1`."
_BASE = "it climbs from the base rate. Here it should climb from 0, by an equal part in each step."
_WRONG_RATES = [
    _rate("that's the rate of one worker. Multiply it by `workers`.", peak=lambda base, workers: base),
    _rate("that's square-root scaling. Linear scaling multiplies by `workers`.", peak=lambda b, n: b * math.sqrt(n)),
    _rate(
        "you divided by `workers`. More workers take fewer steps, so each step has to be longer.",
        peak=lambda base, workers: base / workers,
    ),
    _rate(_BEYOND, lambda step, warmup: (step + 1) / max(1, warmup)),
    _rate(_BEYOND, lambda step, warmup: step / max(1, warmup)),
    _rate("that's already the peak, so there's no warm-up.", lambda step, warmup: 1),
    _rate(_WASTED, lambda step, warmup: min(1, step / max(1, warmup - 1))),
    _rate(_WASTED, lambda step, warmup: min(1, step / max(1, warmup))),
    _rate(
        "it reaches the peak one step late. The last step of the warm-up should already have it.",
        lambda step, warmup: min(1, (step + 1) / (warmup + 1)),
    ),
    _from_base("it stays the same during the warm-up, but should climb.", lambda step, warmup: step >= warmup - 1),
    _from_base(_BASE, _climb),
    _from_base(_BASE, lambda step, warmup: _climb(step - 1, warmup)),
]
learning_rate = Exercise("learning_rate", observe_rates, rates_properties, _WRONG_RATES, communicates=False)


class DrawnLayer(NamedTuple):
    name: str
    weights: torch.Tensor
    gradient: torch.Tensor


@dataclass(frozen=True)
class LayerRate:
    """What `layer_rate` returned for one layer (a float if it is right), and whether it left the layer unchanged."""

    returned: Any
    unchanged: bool


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


def observe_layers(comm, function: Callable) -> list[LayerRate]:
    """Return what `function` returns for each layer, and whether it left the layer unchanged."""
    rates = []
    for _, weights, gradient in _layers():
        given = weights.clone(), gradient.clone()
        returned = function(*given, TRUST, WEIGHT_DECAY)
        if not isinstance(returned, str | None):
            returned = np.asarray(returned, dtype=float).tolist()
        rates.append(LayerRate(returned, torch.equal(given[0], weights) and torch.equal(given[1], gradient)))
    return rates


def layers_properties(observations: list) -> Iterator[Property]:
    rates = observations[0]
    other = [rate.returned for rate in rates if not isinstance(rate.returned, float)]
    hint = f"it returned {shown(other[0])}." if other else ""
    if other and isinstance(other[0], list):
        hint = "it returned one value per weight. A layer has a single rate, computed from the two norms."
    yield Property("it returns one number", not other, hint)
    hint = "it changes a tensor that it was given: work on copies, not in place."
    yield Property("weights and gradients are left alone", all(rate.unchanged for rate in rates), hint)
    group = {"trust": TRUST, "weight_decay": WEIGHT_DECAY, "clip": False}
    for (name, weights, gradient), rate in zip(_layers(), rates, strict=True):
        right = float(optimizers.layer_rate(weights, gradient, group))
        zero = not (weights.any() and gradient.any())
        hint = "where one of the norms is zero, return 1, so that the layer moves as in plain SGD." if zero else ""
        observed = f"with ‖w‖ = {weights.norm():.4g} and ‖∇w‖ = {gradient.norm():.4g}, "
        observed += f"it should be {right:.4g}, not {rate.returned:.4g}:"
        text = f"{name}: {'1, as there is no ratio' if zero else 'trust × ‖w‖ / (‖∇w‖ + β ‖w‖)'}"
        yield Property(text, close(rate.returned, right, ROUNDING), hint, rate.returned, observed)


def _layer(
    hint: str, rate: Callable = lambda w, g, beta: w / (g + beta * w), norm: Callable = torch.norm, trusted: bool = True
) -> Mistake:
    """Make a wrong `layer_rate`: `rate` combines the two norms and the decay, and `norm` computes the norms."""
    return Mistake(lambda w, g, trust, beta: (trust if trusted else 1) * rate(norm(w), norm(g), beta), hint)


_NORM = "that isn't the norm. The norm is the square root of the sum of the squares, as `.norm()` computes it."
_PARENTHESES = "a pair of parentheses is missing: divide by the whole sum, ‖∇w‖ + β ‖w‖."
_WRONG_LAYERS = [
    _layer("‖w‖ / (‖∇w‖ + β ‖w‖) is right, but multiply it by the trust coefficient.", trusted=False),
    _layer("you left out the weight decay: it pulls at the weights too, with β ‖w‖.", lambda w, g, b: w / g),
    _layer("you left out β. The decay pulls with β ‖w‖, not with all of ‖w‖.", lambda w, g, b: w / (g + w)),
    _layer("the decay is β times the norm of the weights, not β alone.", lambda w, g, b: w / (g + b)),
    _layer("β belongs to the norm of the weights, not to that of the gradient.", lambda w, g, b: w / (w + b * g)),
    _layer(_PARENTHESES, lambda w, g, b: w / g + b * w),
    _layer("it's upside down. Large gradients should give a small rate.", lambda w, g, b: (g + b * w) / w),
    _layer(
        "these are the squares of the norms: take the root, as `.norm()` does.",
        lambda w, g, b: w**2 / (g**2 + b * w**2),
    ),
    _layer("that's trust / (‖∇w‖ + β ‖w‖). Now multiply by the norm of the weights.", lambda w, g, b: 1 / (g + b * w)),
    _layer("that's trust × ‖w‖. Now divide by what pulls at the weights, ‖∇w‖ + β ‖w‖.", lambda w, g, b: w),
    Mistake(
        lambda w, g, trust, beta: trust * w.norm() / (g + beta * w).norm(),
        "you added the two before taking the norm. In the formula, the norms are added.",
    ),
    Mistake(
        lambda w, g, trust, beta: trust * w.norm() / (g.norm() + beta * w.norm()) / math.sqrt(w.numel()),
        "one of the norms is a mean over the weights. A norm is the root of a sum, not of a mean.",
    ),
    _layer(_NORM, norm=lambda tensor: tensor.abs().max()),
    _layer(_NORM, norm=lambda tensor: tensor.abs().sum()),
]
layer_rate = Exercise("layer_rate", observe_layers, layers_properties, _WRONG_LAYERS, communicates=False)
