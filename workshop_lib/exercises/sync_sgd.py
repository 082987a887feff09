"""Checks of the exercises in 02_synchronous_sgd."""

import functools

import numpy as np

from workshop_lib.notebook.checks import Verdict, judged
from workshop_lib.probes import sync_sgd as probes
from workshop_lib.probes.compare import close

STUCK = (
    "every rank has to make the same collective calls in the same order: is one of them inside an `if`, or "
    "after a `return`?"
)
_close = functools.partial(close, rounding=1e-4)  # float32, added up in another order


def average_gradients(function) -> Verdict:
    """`average_gradients(model, comm)` leaves the gradient of the global batch on every rank."""
    return judged(function, probes.average_gradients, _judge_average, stuck=STUCK)


def broadcast_weights(function) -> Verdict:
    """`broadcast_weights(model, comm)` gives every rank the weights of rank 0."""
    return judged(function, probes.broadcast_weights, _judge_broadcast, stuck=STUCK)


def weighted_mean(function) -> Verdict:
    """`weighted_mean(gradient, n_samples, comm)` returns the gradient of the mean loss of all samples."""
    return judged(function, probes.weighted_mean, _judge_weighted, stuck=STUCK)


def _judge_average(facts: list[dict]):
    yield (
        "the weights are left alone",
        all(fact["weights_kept"] for fact in facts),
        "the weights themselves were changed: average `p.grad`, not `p`.",
    )
    gone = [name for fact in facts for name, got in fact["got"].items() if got is None]
    hint = f"{gone[0]} has none: write into `p.grad`, as with `p.grad.copy_(…)`." if gone else ""
    yield "every parameter has its gradient", not gone, hint
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
    for of, fact in enumerate(facts):
        if all(np.array_equal(other["got"][name], fact["own"][name]) for other in facts):
            return f"every rank has the gradient of rank {of}: not one rank's gradient, but the mean of all."
    right_on = [at for at, fact in enumerate(facts) if _close(fact["got"][name], whole)]
    if right_on:
        return f"{name} is right on rank {right_on[0]} and wrong on rank {rank}: all ranks need the mean."
    if not complete:
        return f"{name} is not averaged on rank {rank}, others are: go through all of model.parameters()."
    if np.array_equal(got, own):
        return "each rank still has its own gradient: write the mean into it, with `p.grad.copy_(…)`."
    if _close(got, size * whole):
        return "that is the sum over ranks: divide by comm.size."
    if _close(got, whole / size):
        return "that is the mean divided by comm.size once more."
    factor = float((got * whole).sum() / (whole * whole).sum())
    if factor and _close(got, factor * whole):
        return f"it is {factor:.4g} times the gradient of the global batch: divide the sum by comm.size alone."
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
        return f"{name} is not that of rank 0, others are: go through all of model.parameters()."
    if np.array_equal(got, facts[rank]["own"][name]):
        return f"rank {rank} still has its own weights: copy what arrives into the parameter, `p.copy_(…)`."
    return f"on rank {rank}, {name} is neither its own nor that of rank 0."


def _judge_weighted(facts: list[dict[str, dict]]):
    uneven, none = ([fact[case] for fact in facts] for case in ("uneven", "none"))
    without = [rank for rank, row in enumerate(uneven) if np.shape(row["returned"]) != row["right"].shape]
    hint = ""
    if without:
        got = uneven[without[0]]["returned"]
        what = "nothing: `return` the mean" if got is None else f"{got!r}: an array like `gradient` is needed"
        hint = f"rank {without[0]} returned {what}."
    yield "every rank returns an array like its gradient", not without, hint
    for text, rows in (
        ("it is the gradient of the mean loss of all samples", uneven),
        ("also when a rank has no samples", none),
    ):
        wrong = [rank for rank, row in enumerate(rows) if not _close(row["returned"], row["right"])]
        yield text, not wrong, _weighted_hint(rows, wrong[0]) if wrong else ""
    kept = all(row["unchanged"] for row in uneven)
    yield "`gradient` is as it was", kept, "make a new array: `gradient * …`, not `gradient *= …`."


def _weighted_hint(rows: list[dict], rank: int) -> str:
    got, right, own, n = (rows[rank][key] for key in ("returned", "right", "own", "n_samples"))
    size, total = len(rows), sum(row["n_samples"] for row in rows)
    if _close(got, own):
        return f"rank {rank} returned its own gradient: the ranks' gradients have to be added up."
    if _close(got, own * n / total):
        return f"that is the part of rank {rank}: add up the parts of all ranks."
    plain = sum(row["own"] for row in rows)
    if _close(got, plain / size):
        return "that is the plain mean over ranks: each gradient counts by its number of samples."
    if _close(got, plain):
        return "that is the plain sum over ranks: each gradient counts by its number of samples."
    for divided_by, hint in (
        (1, "that is the sum over all samples: divide by how many there are on all ranks."),
        (size, "the sum over samples was divided by the number of ranks: divide by the number of samples."),
        (n, "the sum over samples was divided by this rank's own count: add up the counts as well."),
        (total * size, "the mean over samples was divided once more, by the number of ranks."),
    ):
        if divided_by and _close(got, right * total / divided_by):
            return hint
    return f"rank {rank} returned another vector: weigh each gradient by its samples, and divide by all of them."


def _count(facts: list[dict]) -> int:
    return sum(len(fact["whole"]) for fact in facts)
