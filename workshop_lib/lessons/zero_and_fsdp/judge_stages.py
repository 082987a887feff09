"""Judges stages 1 and 2 of 06_zero_and_fsdp: Zero1 shards the optimizer's state, and Zero2 the gradients, too."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.collectives.counting import CountingComm
from workshop_lib.judge.network import batch, network, weights_of
from workshop_lib.judge.play import Edit, played

NOTEBOOK = "06_zero_and_fsdp"
STEPS = 3
LR = 0.1


def make_sgd(parameters: Iterable) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters), lr=LR, momentum=0.9)


def load_optimizers() -> None:
    """Create an optimizer, because a process's first one loads much of PyTorch. A check then doesn't wait for that."""
    make_sgd(network().parameters())


def play_steps(make: Callable, comm, gradients_too: bool) -> Iterator[tuple]:
    """Train a few steps with the class, on the rank's own samples.

    gradients_too: whether the class shards the gradients, too. Each of its steps then has two backward passes.
    """
    model = network()
    passes = 2 if gradients_too else 1
    start = weights_of(model)
    counting = CountingComm(comm)
    zero: Any = None
    weights: list[np.ndarray] = []  # after each step
    held_bytes: list[int] = []  # after each gradient that the backward pass finishes, and after this pass
    in_backward_bytes = 0

    def count_held(*_) -> None:
        shards = [] if zero is None else [p for group in zero.optimizer.param_groups for p in group["params"]]
        everything = {id(p): p for p in [*model.parameters(), *shards]}
        held_bytes.append(sum(p.grad.nbytes for p in everything.values() if p.grad is not None))

    for parameter in model.parameters():  # these hooks come before the class's own, so they run first
        parameter.register_post_accumulate_grad_hook(count_held)
    zero = make(model, counting, make_sgd)
    before = counting.bytes_sent
    for step in range(STEPS):
        zero.optimizer.zero_grad()  # gradients left over from the last step don't count
        model.zero_grad()
        sent = counting.bytes_sent
        for micro_batch in range(passes):
            inputs, labels = batch(comm.rank, passes * step + micro_batch)
            cross_entropy(model(inputs), labels).backward()
            count_held()
        in_backward_bytes += counting.bytes_sent - sent
        zero.step()
        weights.append(weights_of(model))
    sent_bytes = (counting.bytes_sent - before) / STEPS

    moved = bool((weights[0] != start).any())
    advice = "Does the shard have a `.grad` before `self.optimizer.step()`?"
    yield "the step changes the weights", moved, "the step moves nothing.", advice
    same = all(map(np.array_equal, weights, comm.bcast(weights)))
    observed = f"the ranks hold different weights, and rank {comm.rank} sent {sent_bytes:.0f} bytes per step."
    yield "after each step the ranks hold the same weights, to the last bit", same or sent_bytes, observed
    text = "the first step is that of one process with the global batch"
    yield text, weights[0], "after one step", ONLY_SHARDS if gradients_too else ""
    advice = "is the gradient of the step before still in a shard's `.grad`, or is the optimizer's state lost?"
    yield f"so are {STEPS} steps with momentum", weights[-1], f"after {STEPS} steps", advice
    counts = [p.numel() for p in model.parameters()]
    buffers = counts if gradients_too else [sum(counts)]
    shard_bytes = 8 * sum(-(-n // comm.size) for n in buffers)  # each buffer is padded
    if gradients_too:
        text = "the gradients are sent during the backward pass"
        yield text, in_backward_bytes > 0, "", "The reduce-scatter belongs in `reduce`, not in `step`."
        held = held_bytes[-1]
        observed = f"after the backward pass a rank holds {held} bytes of gradients, but its shard is {shard_bytes}."
        yield f"after the backward pass a rank holds 1/{comm.size} of the gradients", held, observed, ONLY_SHARDS
        allowed = shard_bytes + 8 * max(counts)
        most = max(held_bytes)
        observed = f"it held {most} bytes, but may never hold more than {allowed}."
        yield "and never more than its shard and one gradient", most <= allowed, observed, ONLY_SHARDS
    states = [value for state in zero.optimizer.state.values() for value in state.values()]
    state_bytes = sum(value.nbytes for value in states if isinstance(value, torch.Tensor))
    observed = f"rank {comm.rank} holds {state_bytes} bytes of state, but its shard is {shard_bytes}."
    advice = "Make the optimizer for the shards, not for the model's parameters."
    yield f"a rank holds 1/{comm.size} of the optimizer's state", state_bytes, observed, advice
    due_bytes = (passes + 1) * (comm.size - 1) * shard_bytes  # each half of an allreduce (Patarasuk and Yuan 2009)
    observed = f"a rank sends {sent_bytes:.0f} bytes per step, and should send {due_bytes}."
    advice = "One reduce-scatter per backward pass and one allgather of the weights are enough."
    yield "a step sends no more bytes than reduce-scatters and one allgather", sent_bytes, observed, advice


ONLY_SHARDS = "Keep only the shard of each gradient, and drop the rest as soon as it is reduced."
REDUCE = "total = ring.reduce_scatter(self.comm, gradient.numpy())"
MEAN = "total / self.comm.size"
OWN_PART = "total = gradient.numpy()[ring.part(len(gradient), self.comm.rank, self.comm.size)]"
ALLREDUCE = f"""{OWN_PART}
        total[:] = ring.reduce_scatter(self.comm, gradient.numpy())
        ring.allgather(self.comm, gradient.numpy())"""
ADD = "mean if before is None else before + mean"
GATHER = "ring.allgather(self.comm, self.weights.numpy())"
EDITS = [
    Edit(
        "a part is updated from its own rank's samples alone. `ring.reduce_scatter` adds up all ranks' gradients.",
        (REDUCE, OWN_PART),
    ),
    Edit("the gradient is the sum over ranks, not the mean: divide by `self.comm.size`.", (MEAN, "total")),
    Edit(
        "That is an allreduce of the gradients, which gathers what nobody needs, and an allgather of the weights.",
        (REDUCE, ALLREDUCE),
    ),
]
OF_ONE = {
    "Zero1": [Edit("End the step with an allgather of the weights.", (GATHER, "pass"))],
    "Zero2": [
        Edit(
            "Only the last backward pass counts. Add its gradient to what the shard's `.grad` already holds.",
            (ADD, "mean"),
        ),
        Edit(
            "The whole gradient is still there. Drop it, `p.grad = None`, as soon as you have its shard.",
            ("p.grad = None", "pass"),
        ),
    ],
}
SAME_CALLS = "every rank must make the same calls in the same order, in the backward pass once for every parameter."
Zero1, Zero2 = (
    played(
        name,
        NOTEBOOK,
        functools.partial(play_steps, gradients_too=gradients_too),
        [*EDITS, *OF_ONE[name]],
        alone=True,
        rounding=1e-9,  # all numbers are float64
        ready=load_optimizers,
        stuck=SAME_CALLS,
        raised={"truncate": SAME_CALLS},
    )
    for name, gradients_too in (("Zero1", False), ("Zero2", True))
)
