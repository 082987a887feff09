"""Checks of the exercises in 06_deepspeed_zero."""

import numpy as np

from workshop_lib.notebook.checks import Verdict, is_number, judged, shown
from workshop_lib.probes import zero as probes
from workshop_lib.probes.compare import close
from workshop_lib.scaling.zero_memory import RECIPES, state_bytes
from workshop_lib.training import KINDS


def Zero1(made) -> Verdict:
    """`Zero1(model, comm, make_optimizer)`: its `step` updates this rank's part, and gathers the others'."""
    stuck = (
        "a rank waits in `reduce_scatter` or `allgather` for one that never calls it, or that makes another "
        "call. All ranks must make the same calls, in the same order."
    )
    return judged(made, probes.Zero1, _judge_zero1, stuck=stuck, truncated=stuck)


def Zero2(made) -> Verdict:
    """`Zero2(model, comm, make_optimizer)`: its `reduce` is called for each gradient during backward."""
    stuck = (
        "a rank waits for a reduce-scatter that another one leaves out, or meets another call's message. "
        "Every rank must call it for every parameter: what it sends is needed by the others."
    )
    return judged(made, probes.Zero2, _judge_zero2, stuck=stuck, truncated=stuck)


def bytes_per_rank(function) -> Verdict:
    """`bytes_per_rank(parameters, ranks, stage)`: {"parameters", "gradients", "optimizer"} in bytes."""
    return judged(function, probes.bytes_per_rank, _judge_bytes, stuck="the function does not end.")


def _judge_zero1(facts: list[dict]):
    yield from _judge_weights(facts)
    yield from _judge_state(facts)
    yield from _judge_traffic(facts)


def _judge_zero2(facts: list[dict]):
    yield from _judge_weights(facts)
    yield from _judge_held(facts)
    yield from _judge_state(facts)
    yield from _judge_traffic(facts)


def _judge_weights(facts: list[dict]):
    hint = (
        "the step moved nothing. `self.optimizer` updates a share from its `.grad`: has it been given one, "
        "before `self.optimizer.step()`?"
    )
    moved = [of_rank for of_rank in facts if np.any(of_rank["implied"])]
    yield "the step changes the weights", len(moved) == len(facts), hint
    same = all(
        np.array_equal(mine, first)
        for of_rank in facts
        for mine, first in zip(of_rank["weights"], facts[0]["weights"], strict=True)
    )
    yield "after each step the ranks hold the same weights, to the last bit", same, _apart_hint(facts)
    right = close(facts[0]["weights"][0], facts[0]["expected"][0])
    hint = "" if right else _value_hint(facts)
    yield "the first step is that of one process with the global batch", right, hint
    right = close(facts[0]["weights"][-1], facts[0]["expected"][-1])
    hint = (
        "the first step is right, later ones are not. Is the gradient of the step before still in a share's "
        "`.grad`, or is the optimizer's state lost?"
    )
    yield f"so are {len(facts[0]['weights'])} steps with momentum", right, hint


def _apart_hint(facts: list[dict]) -> str:
    if not any(of_rank["sent"] for of_rank in facts):
        return "no rank sent anything, so each trained alone. Reduce-scatter the gradients first."
    others = [of_rank["implied"][of_rank["owner"] != rank] for rank, of_rank in enumerate(facts)]
    if not any(map(np.any, others)):
        return (
            "each rank has updated its own part, and has the old weights in the parts of the others: the "
            "step ends with an allgather of the weights, after the optimizer's step."
        )
    return (
        "the weights that a rank sends must be those that its optimizer has updated: first "
        "`self.optimizer.step()`, then `ring.allgather`, on all weights."
    )


def _value_hint(facts: list[dict]) -> str:
    got, mean, owner = (facts[0][name] for name in ("implied", "mean", "owner"))
    size = facts[0]["size"]
    patched = np.stack([of_rank["own"] for of_rank in facts])[owner, np.arange(len(owner))]
    for factor in (1.0, 1 / size):
        if close(got, patched * factor):
            return (
                "each part was updated with the gradient of the one rank that owns it: other ranks' samples "
                "do not count. `ring.reduce_scatter` adds up all ranks' gradients."
            )
    if close(got, mean * size):
        return "the gradient is the sum over ranks, not the mean: divide by `self.comm.size`."
    if close(got, mean / size):
        return f"the gradient is too small by {size}: the number of ranks was divided by twice."
    fitting = [close(got[owner == rank], mean[owner == rank]) for rank in range(size)]
    if any(fitting):
        return (
            f"only the part of rank {fitting.index(True)} is right: the others were updated with the "
            "gradients of another part. What `reduce_scatter` returns is the part of the rank that calls it."
        )
    return (
        f"the step's norm is {np.linalg.norm(got) / np.linalg.norm(mean):.3g} times the right one. Are "
        "weights and gradients of the same part, and in the same order?"
    )


def _judge_state(facts: list[dict]):
    row = facts[0]
    hint = (
        f"rank 0 holds {row['state']} bytes of state, its share is {row['share']}: the optimizer must be "
        "made for the shares, not for the model's parameters."
    )
    right = all(of_rank["state"] == of_rank["share"] for of_rank in facts)
    yield f"a rank holds 1/{row['size']} of the optimizer's state", right, hint


def _judge_traffic(facts: list[dict]):
    row = facts[0]
    size, whole = row["size"], row["whole"]
    ring = 2 * (size - 1) / size * whole  # Patarasuk and Yuan 2009, for an allreduce
    most = max(of_rank["sent"] for of_rank in facts)
    hint = f"a rank sends {most:.0f} bytes a step, {most / ring:.2g} times as many. "
    if close(most, 1.5 * ring):
        hint += (
            "That is an allreduce of the gradients and an allgather of the weights: the allreduce ends with "
            "an allgather of its own, of gradients that nobody needs."
        )
    else:
        hint += "One reduce-scatter of the gradients and one allgather of the weights are enough."
    yield "a step sends as many bytes as one ring allreduce", close(most, ring), hint


def _judge_held(facts: list[dict]):
    row = max(facts, key=lambda of_rank: of_rank["held"])
    share = row["share"]
    hint = f"at the end of backward a rank holds {row['held']} bytes of gradients, its share is {share}. "
    if not row["sent_in_backward"]:
        hint += "Nothing was sent during backward: the reduce-scatter belongs into `reduce`, not into `step`."
    elif row["held"] >= 8 * len(row["owner"]):
        hint += "The whole gradient is still there: drop it, `p.grad = None`, as soon as its share is taken."
    else:
        hint += "Keep nothing but the share of each gradient."
    yield f"after backward a rank holds 1/{row['size']} of the gradients", row["held"] == share, hint
    most = max(of_rank["held_most"] for of_rank in facts)
    allowed = share + row["largest"]
    hint = (
        f"it held {most} bytes, its share and the largest gradient are {allowed}: drop each gradient as soon "
        "as it is reduced, before the next one comes."
    )
    yield "and never more than its share and one gradient", most <= allowed, hint


def _judge_bytes(facts: list[dict]):
    answers = facts[0]
    wrong = [value for value in answers.values() if not _is_parts(value)]
    hint = f"it returned {shown(wrong[0])}." if wrong else ""
    yield f"it returns a dictionary with {', '.join(KINDS)}", not wrong, hint
    for stage in range(4):
        hint = ""
        for (n, ranks, of), answer in answers.items():
            right = state_bytes(n, ranks, stage, **RECIPES["fp32, Adam"])
            if of == stage and not hint and any(not close(answer[name], right[name]) for name in KINDS):
                hint = _bytes_hint(n, ranks, stage, answer, right)
        yield f"stage {stage}", not hint, hint


def _is_parts(value) -> bool:
    return isinstance(value, dict) and set(value) == set(KINDS) and all(map(is_number, value.values()))


def _bytes_hint(n: int, ranks: int, stage: int, answer: dict, right: dict) -> str:
    name = next(name for name in KINDS if not close(answer[name], right[name]))
    told = f"{n} parameters on {ranks} ranks, {name}: {answer[name]:g} bytes. "
    if close(answer[name] * 4, right[name]):
        return told + "That is the number of weights: each takes 4 bytes in fp32."
    if name == "optimizer" and close(answer[name] * 2, right[name]):
        return told + "Adam keeps two numbers for each weight, of 4 bytes each."
    if name == "optimizer" and close(answer[name] / 1.5, right[name]):
        return told + "Adam's state alone, please: 8 bytes a weight, without a second copy of the weights."
    if close(answer[name] * ranks, right[name]):
        return told + f"Stage {stage} does not share them out yet: every rank holds them all."
    if close(answer[name] / ranks, right[name]):
        return told + f"In stage {stage} a rank holds only its share of them."
    return told + f"Not {right[name]:g}?"
