"""Checks of the exercises in 07_large_batch."""

import functools
import math

from workshop_lib.notebook.checks import Verdict, is_number, judged, shown
from workshop_lib.probes import large_batch as probes
from workshop_lib.probes.compare import close
from workshop_lib.probes.large_batch import TRUST

STUCK = "it did not return: is there a loop that never ends?"
_close = functools.partial(close, rounding=1e-5)


def learning_rate(function) -> Verdict:
    """`learning_rate(step, base_lr, workers, warmup_steps)`: linear scaling with gradual warm-up."""
    return judged(function, probes.learning_rate, _judge_learning_rate, stuck=STUCK)


def layer_rate(function) -> Verdict:
    """`layer_rate(weights, gradient, trust)`: LARS's rate of one layer."""
    return judged(function, probes.layer_rate, _judge_layer_rate, stuck=STUCK)


def _judge_learning_rate(facts: list):
    cases = facts[0]
    wrong = [rate for case in cases for rate in case["got"] if not is_number(rate)]
    yield "it returns a number", not wrong, f"it returned {shown(wrong[0])}." if wrong else ""
    after, during = [], []
    for found in cases:
        peak_from = max(found["case"][2] - 1, 0)
        for step, (got, right) in enumerate(zip(found["got"], found["right"], strict=True)):
            if not _close(got, right):
                (after if step > peak_from else during).append((step, *found["case"], got, right))
    yield "after the warm-up, the rate is the base rate times the workers", not after, _peak_hint(*after[:1])
    yield "during the warm-up, it climbs to that in equal steps", not during, _climb_hint(*during[:1])


def _peak_hint(first=None) -> str:
    if first is None:
        return ""
    step, base, workers, warmup, got, right = first
    told = f"step {step}, {workers} workers, base rate {base:g}, {warmup} warm-up steps: {got:g}. "
    if _close(got, base):
        return told + "That is the rate of one worker: multiply it by the workers."
    if _close(got, base * math.sqrt(workers)):
        return told + "That is square-root scaling: linear scaling multiplies by the workers."
    if _close(got, base / workers):
        return told + "It is divided by the workers: more workers, and so fewer steps, need larger ones."
    if got > right:
        return told + "The climb goes on beyond the peak: end it with min(…, 1) or an `if`."
    return told + f"It should be {right:g}."


def _climb_hint(first=None) -> str:
    if first is None:
        return ""
    step, base, workers, warmup, got, right = first
    told = f"step {step} of {warmup} warm-up steps, {workers} workers, base rate {base:g}: {got:g}. "
    peak = base * workers
    if _close(got, peak):
        return told + "That is the peak already: there is no warm-up."
    if got == 0:
        return told + "A rate of zero wastes the step: count from 1 here, and step 0 has climbed one part."
    if _close(got, base):
        return told + "That is a constant warm-up: here the rate climbs in each step."
    if _close(got, peak * (step + 1) / (warmup + 1)):
        return told + "The peak is to be reached in the last step of the warm-up, not in the one after it."
    if any(_close(got, base + (peak - base) * parts / warmup) for parts in (step, step + 1)):
        return told + "It climbs from the base rate: here it climbs from 0, by one part in each step."
    return told + f"It should be {right:g}: {step + 1} of {warmup} parts of the peak."


def _judge_layer_rate(facts: list):
    layers = facts[0]
    wrong = [layer["got"] for layer in layers if not isinstance(layer["got"], float)]
    hint = "it returned one value a weight: a layer has one rate, from the norms of all its weights."
    yield "it returns one number", not wrong, hint if wrong and isinstance(wrong[0], list) else ""
    changed = not all(layer["unchanged"] for layer in layers)
    yield "weights and gradients are left alone", not changed, "work on copies, not in place."
    for layer in layers:
        zero = 0.0 in layer["norms"]
        text = f"{layer['layer']}: {'1, as there is no ratio' if zero else 'trust × ‖w‖ / ‖∇w‖'}"
        yield text, _close(layer["got"], layer["right"]), _rate_hint(layer, zero)


def _rate_hint(layer: dict, zero: bool) -> str:
    got, (weights, gradient) = layer["got"], layer["norms"]
    told = f"{layer['layer']}, ‖w‖ = {weights:.4g}, ‖∇w‖ = {gradient:.4g}: {got:.4g}. "
    if zero:
        return told + "Where one of the norms is zero, return 1: the layer then moves as in plain SGD."
    candidates = {
        "‖w‖ / ‖∇w‖ is right, and the trust coefficient is missing.": weights / gradient,
        "It is upside down: large gradients must give a small rate.": TRUST * gradient / weights,
        "These are squares of the norms: take the root, as `.norm()` does.":
            TRUST * (weights / gradient) ** 2,
        "That is 1 / ‖∇w‖: the weights' norm is missing.": TRUST / gradient,
        "That is ‖w‖: divide by the norm of the gradient.": TRUST * weights,
        "That is divided by the number of weights: a norm is a root of a sum, not of a mean.":
            TRUST * weights / gradient / math.sqrt(layer["size"]),
    }  # fmt: skip
    for text, value in candidates.items():
        if _close(got, value):
            return told + text
    return told + f"It should be {layer['right']:.4g}: the norm is the root of the sum of the squares."
