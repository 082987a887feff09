"""Checks of the exercises in 02_synchronous_sgd."""

import numpy as np

from workshop_lib.notebook.checks import Verdict, judged
from workshop_lib.probes import sync_sgd as probes

STUCK = "every rank has to make the same collective calls: is one of them inside an `if`?"
ROUNDING = 1e-4  # of the largest element; float32 sums in another order


def average_gradients(function) -> Verdict:
    """`average_gradients(model, comm)` leaves the gradient of the global batch on every rank."""
    return judged(function, probes.average_gradients, _judge_average, timeout=10, stuck=STUCK)


def broadcast_weights(function) -> Verdict:
    """`broadcast_weights(model, comm)` gives every rank the weights of rank 0."""
    return judged(function, probes.broadcast_weights, _judge_broadcast, timeout=10, stuck=STUCK)


def _judge_average(facts: list[dict]):
    yield (
        "the weights are left alone",
        all(fact["weights_kept"] for fact in facts),
        "the weights themselves were changed: average `p.grad`, not `p`.",
    )
    gone = [name for fact in facts for name, got in fact["got"].items() if got is None]
    yield (
        "every parameter has its gradient",
        not gone,
        f"{gone[0]} has none: write into `p.grad`." if gone else "",
    )
    wrong = [
        (rank, name)
        for rank, fact in enumerate(facts)
        for name in fact["whole"]
        if not _close(fact["got"][name], fact["whole"][name])
    ]
    hint = _average_hint(facts, *wrong[0], complete=len(wrong) == _count(facts)) if wrong else ""
    yield "every rank has the gradient of the global batch", not wrong, hint
    first = facts[0]["got"]
    same = all((fact["got"][name] == first[name]).all() for fact in facts for name in first)
    hint = "they agree only roughly: every rank must get the same sum, as from one Allreduce."
    yield "the ranks' gradients are equal to the last bit", same, hint


def _average_hint(facts: list[dict], rank: int, name: str, complete: bool) -> str:
    got, whole, own = (facts[rank][key][name] for key in ("got", "whole", "own"))
    size = len(facts)
    if not complete:
        return f"{name} is not averaged on rank {rank}, others are: go through all of model.parameters()."
    for of, fact in enumerate(facts):
        if all(np.array_equal(other["got"][name], fact["own"][name]) for other in facts):
            return f"every rank has the gradient of rank {of}: not one rank's gradient, but the mean of all."
    if np.array_equal(got, own):
        return (
            "each rank still has its own gradient: send it with Allreduce, and write the mean into `p.grad`."
        )
    if _close(got, size * whole):
        return "that is the sum over ranks: divide by comm.size."
    if _close(got, whole / size):
        return "that is the mean divided by comm.size once more."
    factor = float((got * whole).sum() / (whole * whole).sum())
    if _close(got, factor * whole):
        return (
            f"it is {factor:.4g} times the gradient of the global batch: divide the sum by comm.size alone."
        )
    return f"on rank {rank}, {name} is neither a sum nor a mean of the ranks' gradients."


def _judge_broadcast(facts: list[dict]):
    source = facts[0]["own"]
    wrong = [
        (rank, name)
        for rank, fact in enumerate(facts)
        for name in source
        if not np.array_equal(fact["got"][name], source[name])
    ]
    hint = _broadcast_hint(facts, *wrong[0], wrong) if wrong else ""
    yield "every rank has the weights of rank 0, to the last bit", not wrong, hint


def _broadcast_hint(facts: list[dict], rank: int, name: str, wrong: list) -> str:
    got = facts[rank]["got"][name]
    if _close(got, sum(fact["own"][name] for fact in facts) / len(facts)):
        return "that is the mean of the ranks' weights: all take those of rank 0 instead."
    if _close(got, sum(fact["own"][name] for fact in facts)):
        return "that is the sum of the ranks' weights: all take those of rank 0 instead."
    for of in range(1, len(facts)):
        if rank != of and np.array_equal(got, facts[of]["own"][name]):
            return f"rank {rank} has the weights of rank {of}: the root is rank 0."
    if len(wrong) < (len(facts) - 1) * len(facts[0]["own"]):
        return f"{name} is not that of rank 0: go through all of model.parameters()."
    if np.array_equal(got, facts[rank]["own"][name]):
        return f"rank {rank} still has its own weights: copy what arrives into the parameter, `p.copy_(…)`."
    return f"on rank {rank}, {name} is neither its own nor that of rank 0."


def _count(facts: list[dict]) -> int:
    return sum(len(fact["whole"]) for fact in facts)


def _close(got: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.abs(got - wanted).max() <= ROUNDING * np.abs(wanted).max())
