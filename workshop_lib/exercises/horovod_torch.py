"""Checks of the exercises in 03_horovod_pytorch."""

import math

import numpy as np

from workshop_lib.notebook.checks import Verdict, is_number, judged, shown
from workshop_lib.probes import horovod_torch as probes
from workshop_lib.probes.compare import close

LIMIT_S = 10.0  # starting and stopping Horovod included


def make_distributed(function) -> Verdict:
    """`make_distributed(model, optimizer, hvd)` returns a wrapped optimizer; all go on from rank 0."""
    stuck = (
        "a rank waits in a broadcast or an allreduce that another one never starts: all ranks must make "
        "the same calls, also rank 0."
    )
    return judged(
        function, probes.make_distributed, _judge_distributed, timeout=LIMIT_S, stuck=stuck, ready=probes.ready
    )


def finish_epoch(function) -> Verdict:
    """`finish_epoch(model, images, labels, save, hvd)` returns the exact accuracy; one rank saves."""
    stuck = (
        "a rank waits in an allreduce that another one never starts: all ranks must call it, under the "
        "same name, also those that do not save."
    )
    return judged(function, probes.finish_epoch, _judge_epoch, timeout=LIMIT_S, stuck=stuck, ready=probes.ready)


def _judge_distributed(facts: list[dict]):
    size, lr = facts[0]["size"], facts[0]["lr_for_one"]
    types = {row["type"] for row in facts if not row["optimizer"]}
    hint = "it returned nothing (None): `return` the wrapped optimizer." if "NoneType" in types else ""
    hint = hint or f"it returned {', '.join(sorted(types))}: return what `hvd.DistributedOptimizer` gives."
    yield "it returns an optimizer", not types, hint
    hint = (
        "it is a plain optimizer, which averages nothing: each rank would train a network of its own. "
        "Return what `hvd.DistributedOptimizer` gives."
    )
    yield "the optimizer is wrapped by Horovod", all(row["wrapped"] for row in facts), hint
    yield from _judge_weights(facts)
    yield from _judge_rate(facts, size, lr)
    yield from _judge_state(facts)
    wrong = next((r for r, row in enumerate(facts) if not close(row["gradient"], row["expected_gradient"])), None)
    hint = "" if wrong is None else _gradient_hint(facts[wrong])
    yield "with it, gradients are averaged over the ranks", wrong is None, hint


def _judge_weights(facts: list[dict]):
    wrong = [r for r, row in enumerate(facts) if not np.array_equal(row["weights"], row["expected_weights"])]
    if not wrong:
        hint = ""
    elif 0 in wrong:
        hint = (
            "rank 0's own weights, those of the checkpoint, are gone: the root of the broadcast is the "
            "rank whose weights all get, `root_rank=0`."
        )
    elif all(facts[r]["untouched"] for r in wrong):
        hint = (
            f"rank {wrong[0]} still has its own weights: the broadcast was forgotten. Averaged gradients "
            "keep equal weights equal, they do not make them equal: "
            "`hvd.broadcast_parameters(model.state_dict(), root_rank=0)`."
        )
    else:
        hint = f"rank {wrong[0]} has only some of rank 0's weights: broadcast all of `model.state_dict()`."
    yield "all ranks hold the weights of rank 0's checkpoint", not wrong, hint


def _judge_rate(facts: list[dict], size: int, lr: float):
    rates = [rate for row in facts for rate in row["lr"]]
    wrong = [rate for rate in rates if not math.isclose(rate, lr * size)]
    hint = ""
    if wrong and math.isclose(wrong[0], lr):
        hint = (
            f"the learning rate is still that of one process, {lr:g}. Multiply it by `hvd.size()`: the "
            "global batch is that many times larger. (`local_size` counts the ranks of one host, here one, "
            "not all.)"
        )
    elif wrong and math.isclose(wrong[0], lr / size):
        hint = f"the learning rate was divided by the number of ranks; multiply {lr:g} by it."
    elif wrong and math.isclose(wrong[0], lr * size**2):
        hint = "the learning rate was scaled twice: wrapper and wrapped optimizer share their `param_groups`."
    elif wrong:
        hint = f"the learning rate is {wrong[0]:g} for {size} ranks; it should be {size} times {lr:g}."
    yield "the learning rate is that of all ranks", not wrong, hint


def _judge_state(facts: list[dict]):
    expected = facts[0]["expected_momentum"]
    lost = facts[0]["momentum"] is None or not np.any(facts[0]["momentum"])
    hint = (
        "rank 0's momentum, which came from the checkpoint, is lost: a wrapped optimizer begins without "
        "state. Take `optimizer.state_dict()` before, and load it into the wrapped one with "
        "`load_state_dict`, before the state is broadcast."
    )
    yield "rank 0 keeps the momentum of its checkpoint", not lost, hint
    hint = f"rank 0's momentum has changed: it was {shown(expected)} and is {shown(facts[0]['momentum'])}."
    yield "rank 0's momentum is unchanged", close(facts[0]["momentum"], expected), hint
    wrong = [r for r, row in enumerate(facts) if not close(row["momentum"], expected)]
    hint = (
        f"rank {wrong[0] if wrong else 0} does not have rank 0's momentum, so its first steps would "
        "differ, and the weights with them: `hvd.broadcast_optimizer_state`, with the *wrapped* optimizer."
    )
    yield "all ranks have the same momentum", not wrong, hint


def _gradient_hint(row: dict) -> str:
    got, size = row["gradient"], row["size"]
    if close(got, row["expected_gradient"] * size):
        return "they are the sum over the ranks, and the learning rate is scaled as well: leave `op` as it is."
    if close(got, row["own_gradient"]):
        return "a rank keeps its own gradients: does `named_parameters` name the parameters of this model?"
    if np.allclose(got, row["expected_gradient"], rtol=1e-2, atol=1e-3):
        return "they are nearly right: was something compressed on the way?"
    return "they are not the mean of the ranks' gradients: leave `op` as it is, `hvd.Average`."


def _judge_epoch(facts: list[dict]):
    returned = [row["returned"] for row in facts]
    bad = next((r for r, value in enumerate(returned) if not is_number(value)), None)
    hint = "" if bad is None else f"rank {bad} returned {shown(returned[bad])}: every rank needs the number."
    yield "it returns a number on every rank", bad is None, hint
    hint = _coverage_hint(facts)
    yield "each image is tested once, by one rank", not hint, hint
    right = facts[0]["correct"] / facts[0]["images"]
    wrong = next((r for r, value in enumerate(returned) if not math.isclose(value, right, rel_tol=1e-6)), None)
    hint = "" if wrong is None else _accuracy_hint(wrong, facts)
    yield "it is the accuracy of all images together", wrong is None, hint
    saved = [r for r, row in enumerate(facts) for _ in range(row["saved"])]
    hint = ""
    if not saved:
        hint = "nobody called `save()`: it takes parentheses, on rank 0."
    elif len(set(saved)) > 1:
        hint = (
            f"ranks {', '.join(map(str, sorted(set(saved))))} all saved, into the same file. Let the rank "
            "save whose `hvd.rank()` is 0; `local_rank()` is 0 once on every host, and here each rank has "
            "its own."
        )
    elif len(saved) > 1:
        hint = f"rank {saved[0]} saved {len(saved)} times."
    yield "exactly one rank saves", len(saved) == 1, hint


def _coverage_hint(facts: list[dict]) -> str:
    n, size = facts[0]["images"], facts[0]["size"]
    tested = [row["tested"] for row in facts]
    taken = [number for part in tested for number in part]
    missing, again = n - len(set(taken)), len(taken) - len(set(taken))
    told = f"of {n} images on {size} ranks, {missing} were tested by nobody and {again} again. "
    if not missing and not again:
        return ""
    if size > 1 and all(len(part) == n for part in tested):
        return told + (
            "Every rank tests all of them: give each its part, by `hvd.rank()` and `hvd.size()`. "
            "(`local_rank()` and `local_size()` do not tell the ranks of different hosts apart; here each "
            "rank is alone on its host.)"
        )
    if size > 1 and missing and all(part == tested[0] for part in tested):
        return told + (
            "All ranks test the same part: it was chosen by `local_rank()`, which begins at 0 on every "
            "host, and here each rank is alone on its host. Shard by `hvd.rank()`."
        )
    if missing and not again:
        return told + f"{size} does not divide {n}, so some parts must be one longer: `images[rank::size]`."
    return told + "Parts that are filled up to the same length count some images twice."


def _accuracy_hint(rank: int, facts: list[dict]) -> str:
    row = facts[rank]
    value, size, n = row["returned"], row["size"], row["images"]
    own = row["tested_right"] / max(len(row["tested"]), 1)
    if math.isclose(value, own, rel_tol=1e-6):
        return f"rank {rank} returned the accuracy of its own part alone: add the ranks' counts with `hvd.allreduce`."
    if any(math.isclose(value, mean, rel_tol=1e-6) for mean in row["means"]):
        return (
            "it is the mean of the ranks' accuracies. The parts are not equally long, so an image of a "
            "shorter part would count more: add up the *counts* with `op=hvd.Sum`, and divide once."
        )
    near = row["correct"] / size
    if abs(value * n - near) <= 1 or abs(value - near) <= 1:
        return f"it is {size} times too small: `hvd.allreduce` averages unless it is told `op=hvd.Sum`."
    if math.isclose(value, row["correct"]):
        return "it is the number of right answers: divide it by the number of images."
    if math.isclose(value, row["tested_right"] / n, rel_tol=1e-6):
        return f"rank {rank} divided its own count by all images: add the ranks' counts with `hvd.allreduce` first."
    if math.isclose(value, size * row["correct"] / n, rel_tol=1e-6) or value > 1:
        return "it is too large: divide the sum of all ranks' counts by the number of all images."
    return f"rank {rank} returned {value:.4f} instead of {row['correct']} of {n}."
