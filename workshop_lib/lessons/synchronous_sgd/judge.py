"""How 02_synchronous_sgd checks its exercises: the training loop, broadcast weights and a mean over all samples.

The two exercises on averaged gradients are in judge_averaging.py.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.judge import Exercise, Mistake, Property, shown
from workshop_lib.judge.calls import JudgedCall, all_right
from workshop_lib.judge.network import weights_of
from workshop_lib.lessons.synchronous_sgd.judge_averaging import (
    ALL_PARAMETERS,
    STUCK,
    Parameters,
    average_gradients,
    average_in_one_message,
    compared,
    image_batch,
    same_but_rounding,
    weights_by_name,
)
from workshop_lib.models import torch_cnn

__all__ = ["average_gradients", "average_in_one_message", "broadcast_weights", "train_epoch", "weighted_mean"]

# In the training loop: samples per rank and step, and number of steps.
SAMPLES = 4
STEPS = 2


@dataclass
class TrainedLoop:
    """What the learner's training loop did on one rank."""

    weights: np.ndarray  # the rank's weights afterwards, as one array
    right: np.ndarray  # the weights of one process that trained with the global batches, as one array
    steps: int  # how many batches were taken
    averaged: int  # how often gradients were averaged


def observe_loop(comm, function: Callable) -> TrainedLoop:
    """Run a short epoch on this rank's parts of random batches, and then a correct one on the whole batches."""
    whole = [image_batch(SAMPLES * comm.size, seed=step) for step in range(STEPS)]
    mine = slice(SAMPLES * comm.rank, SAMPLES * (comm.rank + 1))
    count: Counter[str] = Counter()

    def own_batches():
        for images, labels in whole:
            count["batches"] += 1
            yield images[mine], labels[mine]

    def average(model, comm):
        count["averages"] += 1
        _average(model, comm)

    model = torch_cnn.build(seed=1)
    right = torch_cnn.build(seed=1)
    sgd = _Sgd(model)
    reference = _Sgd(right)
    function(model, sgd, sgd.schedule, own_batches(), average, comm)
    _loop(right, reference, reference.schedule, whole, lambda model, comm: None, comm)
    return TrainedLoop(weights_of(model), weights_of(right), count["batches"], count["averages"])


def loop_properties(observations: list[TrainedLoop]) -> Iterator[Property]:
    steps = [seen.steps for seen in observations]
    hint = f"rank 0 took {steps[0]} of {STEPS} batches: is there a `return` or a `break` inside the loop?"
    yield Property("it goes through all batches", set(steps) == {STEPS}, hint)
    weights = [seen.weights for seen in observations]
    averaged = [seen.averaged for seen in observations]
    yield Property("it averages in every step", set(averaged) == {STEPS}, evidence=(averaged, weights))
    same = all(np.array_equal(each, weights[0]) for each in weights)
    yield Property("all ranks end with the same weights, to the last bit", same, evidence=weights)
    right = all(same_but_rounding(seen.weights, seen.right) for seen in observations)
    yield Property("they are those of one process that trains with the global batches", right, evidence=weights)


def _loop(model, optimizer, schedule, batches, average, comm, without: str = "", at_the_end: bool = False) -> None:
    """A training loop with one line missing or misplaced (`without`), or that averages the weights `at_the_end`."""
    for images, labels in batches:
        if without != "zero_grad":
            optimizer.zero_grad()
        reduction = "sum" if without == "mean" else "mean"
        cross_entropy(model(images), labels, reduction=reduction).backward()
        if without == "order":
            optimizer.step()
        if without != "average":
            average(model, comm)
        if without not in ("step", "order"):
            optimizer.step()
        if without != "schedule":
            schedule.step()
    if at_the_end:
        for p in model.parameters():
            p.data.copy_(torch.from_numpy(comm.allreduce(p.detach().numpy()) / comm.size))


train_epoch = Exercise(
    "train_epoch",
    observe_loop,
    loop_properties,
    [
        Mistake(
            partial(_loop, without="average"), "Each rank trains alone: call `average` before the optimizer steps."
        ),
        Mistake(
            partial(_loop, without="order"), "You average after the step: by then, the optimizer has used `p.grad`."
        ),
        Mistake(
            partial(_loop, without="zero_grad"), "`backward` adds to the gradients of the last step: clear them first."
        ),
        Mistake(
            partial(_loop, without="schedule"), "The learning rate never changed: call `schedule.step()` in each step."
        ),
        Mistake(partial(_loop, without="step"), "The weights have not changed at all: let the optimizer step."),
        Mistake(
            partial(_loop, without="mean"), "That is the gradient of the summed loss: `cross_entropy` takes the mean."
        ),
        Mistake(
            partial(_loop, without="average", at_the_end=True),
            "You average weights at the end of the epoch: average the gradients in every step instead.",
        ),
    ],
    stuck="every rank must average as often as the others: is `average` inside an `if`?",
    unknown="For each batch: clear the gradients, compute the loss, go backward, average, step, and step the schedule.",
)


def observe_broadcast(comm, function: Callable) -> Parameters:
    """Call the function on ranks whose weights differ."""
    model = torch_cnn.build(seed=10 + comm.rank)
    right = comm.bcast(weights_by_name(model))
    function(model, comm)
    return Parameters(weights_by_name(model), right)


def broadcast_properties(observations: list[Parameters]) -> Iterator[Property]:
    text = "every rank has the weights of rank 0, to the last bit"
    right, wrong = compared(observations, np.array_equal)
    hint = ""
    observed = ""
    if wrong:
        rank, name = wrong[0]
        observed = f"on rank {rank}, {name} is not that of rank 0."
        if any(right[rank].values()):
            hint = f"on rank {rank}, {name} is not that of rank 0, but other parameters are: {ALL_PARAMETERS}"
    yield Property(text, not wrong, hint, [seen.got for seen in observations], observed)


def _set_weights(combined: Callable, hint: str) -> Mistake:
    """A wrong `broadcast_weights`, which replaces each parameter with `combined(mine, comm)`, and the hint for it."""

    def broadcast_weights(model, comm):
        for p in model.parameters():
            p.data.copy_(torch.from_numpy(combined(p.detach().numpy().copy(), comm)))

    return Mistake(broadcast_weights, hint)


broadcast_weights = Exercise(
    "broadcast_weights",
    observe_broadcast,
    broadcast_properties,
    [
        _set_weights(
            lambda mine, comm: mine, "Each rank still has its own weights: copy what arrives into the parameter."
        ),
        _set_weights(
            lambda mine, comm: comm.bcast(mine, comm.size - 1),
            "Those are the weights of the last rank: the root is rank 0.",
        ),
        _set_weights(
            lambda mine, comm: comm.allreduce(mine) / comm.size,
            "That is the mean of the ranks' weights: every rank needs those of rank 0.",
        ),
        _set_weights(
            lambda mine, comm: comm.allreduce(mine),
            "That is the sum of the ranks' weights: every rank needs those of rank 0.",
        ),
        _set_weights(
            lambda mine, comm: comm.bcast(mine.astype(np.float16)).astype(np.float32),
            "They were rounded to 16 bits on the way: send them as they are, in 32.",
        ),
    ],
    stuck=STUCK,
    unknown="Send the array from rank 0 with Bcast, copy what arrived into the parameter, and change nothing else.",
)


def observe_weighted(comm, function: Callable) -> list[JudgedCall]:
    """Call the function twice: first every rank has a different number of samples, and then rank 1 has none.

    Each sample's gradient is a random vector of 6 numbers.
    """
    uneven = [comm.size + 1 + 2 * rank for rank in range(comm.size)]
    calls = []
    for counts in (uneven, [0 if rank == 1 else n for rank, n in enumerate(uneven)]):
        of_samples = np.random.default_rng(5).normal(size=(sum(counts), 6))
        first = sum(counts[: comm.rank])
        own = of_samples[first : first + counts[comm.rank]]
        gradient = own.mean(axis=0) if len(own) else np.zeros(6)
        given = gradient.copy()
        returned = function(given, len(own), comm)
        calls.append(JudgedCall(returned, of_samples.mean(axis=0), np.array_equal(given, gradient)))
    return calls


def weighted_properties(observations: list[list[JudgedCall]]) -> Iterator[Property]:
    uneven, with_none = zip(*observations, strict=True)
    other = [(rank, call.returned) for rank, call in enumerate(uneven) if np.shape(call.returned) != call.right.shape]
    hint = ""
    if other:
        rank, returned = other[0]
        advice = "`return` the mean" if returned is None else "return an array like `gradient`"
        hint = f"rank {rank} returned {shown(returned)}: {advice}."
    yield Property("every rank returns an array like its gradient", not other, hint)
    yield all_right("it is the gradient of the mean loss of all samples", uneven, same=same_but_rounding)
    yield all_right("also when a rank has no samples", with_none, same=same_but_rounding)
    kept = all(call.unchanged for call in uneven)
    yield Property("`gradient` is as it was", kept, "make a new array: `gradient * …`, not `gradient *= …`.")


_WEIGH = "Weigh each gradient by its number of samples."

weighted_mean = Exercise(
    "weighted_mean",
    observe_weighted,
    weighted_properties,
    [
        Mistake(lambda g, n, comm: comm.allreduce(g) / comm.size, f"That is the plain mean over ranks. {_WEIGH}"),
        Mistake(lambda g, n, comm: comm.allreduce(g), f"That is the plain sum over ranks. {_WEIGH}"),
        Mistake(lambda g, n, comm: comm.allreduce(g * n), "That is the sum over all samples: divide by their number."),
        Mistake(
            lambda g, n, comm: comm.allreduce(g * n) / comm.size, "Divide by the number of all samples, not of ranks."
        ),
        Mistake(
            lambda g, n, comm: comm.allreduce(g * n) / max(1, n), "You divided by this rank's count: add up counts."
        ),
        Mistake(
            lambda g, n, comm: g * n / comm.allreduce(n), "That is this rank's part of the mean: add up all parts."
        ),
        Mistake(lambda g, n, comm: g.copy(), "Each rank returned its own gradient: add up those of all ranks."),
        Mistake(
            lambda g, n, comm: comm.allreduce(g * n) / comm.allreduce(n) / comm.size,
            "You divided the mean over samples once more, by the number of ranks.",
        ),
    ],
    stuck=STUCK,
    unknown="Weigh each gradient by its number of samples, add these up, and divide by the number of samples in all.",
)


class _Sgd:
    """Plain SGD and its schedule, with PyTorch's method names. PyTorch's own optimizers take seconds to load."""

    def __init__(self, model):
        self.parameters = list(model.parameters())
        self.lr = 0.1
        self.schedule = SimpleNamespace(step=self.halve)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        for p in self.parameters:
            p.data -= self.lr * p.grad

    def halve(self) -> None:
        self.lr /= 2


def _average(model, comm) -> None:
    for p in model.parameters():
        mine = p.grad.numpy().copy()
        total = np.empty_like(mine)
        comm.Allreduce(mine, total)
        p.grad.copy_(torch.from_numpy(total / comm.size))
