"""How 02_synchronous_sgd checks its exercises: the training loop, broadcast weights and a mean over all samples.

The two exercises on averaged gradients are in judge_averaging.py.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import torch

from workshop_lib.judge.network import weights_of
from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.synchronous_sgd.judge_averaging import (
    ALL_PARAMETERS,
    NOTEBOOK,
    ROUNDING,
    STUCK,
    average_gradients,
    average_in_one_message,
    image_batch,
    weights_by_name,
)
from workshop_lib.models import torch_cnn

__all__ = [
    "NOTEBOOK",
    "average_gradients",
    "average_in_one_message",
    "broadcast_weights",
    "train_epoch",
    "weighted_mean",
]

# In the training loop: samples per rank and step, and number of steps.
SAMPLES = 4
STEPS = 2


def play_loop(train_epoch: Callable, comm) -> Iterator[tuple]:
    """Run a short epoch on this rank's parts of random batches."""
    whole = [image_batch(SAMPLES * comm.size, seed=step) for step in range(STEPS)]
    mine = slice(SAMPLES * comm.rank, SAMPLES * (comm.rank + 1))
    count: Counter[str] = Counter()

    def own_batches():
        for images, labels in whole:
            count["batches"] += 1
            yield images[mine], labels[mine]

    def average(model, comm):
        count["averages"] += 1
        if any(p.grad is None for p in model.parameters()):
            count["averages of nothing"] += 1
            return
        for p in model.parameters():
            p.grad.copy_(torch.from_numpy(comm.allreduce(p.grad.numpy()) / comm.size))

    model = torch_cnn.build(seed=1)
    sgd = _Sgd(model)
    train_epoch(model, sgd, sgd.schedule, own_batches(), average, comm)
    observed = f"rank {comm.rank} took {count['batches']} of {STEPS} batches:"
    advice = "is there a `return` or a `break` inside the loop?"
    yield "it goes through all batches", count["batches"], observed, advice
    text = "there are gradients when it averages and when it steps"
    observed = "`average` was called while `p.grad` was still None:"
    yield text, count["averages of nothing"], observed, "call it after `backward`, which computes the gradients."
    observed = "`optimizer.step` was called while `p.grad` was still None:"
    yield text, sgd.steps_without_gradients, observed, "call it after `backward`, which computes the gradients."
    weights = weights_of(model)
    every_step = count["averages"] == STEPS
    observed = f"rank {comm.rank} averaged {count['averages']} times in {STEPS} steps."
    # The weights tell mistakes apart.
    yield "it averages in every step", every_step or [count["averages"], weights], observed
    same = np.array_equal(weights, comm.bcast(weights))
    observed = f"rank {comm.rank} has other weights than rank 0."
    yield "all ranks end with the same weights, to the last bit", same or weights, observed
    text = "they are those of one process that trains with the global batches"
    yield text, weights, f"after {STEPS} steps"


class _Sgd:
    """Plain SGD and its schedule, with PyTorch's method names. PyTorch's own optimizers take seconds to load."""

    def __init__(self, model):
        self.parameters = list(model.parameters())
        self.lr = 0.1
        self.schedule = SimpleNamespace(step=self.halve)
        self.steps_without_gradients = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        if any(p.grad is None for p in self.parameters):
            self.steps_without_gradients += 1
            return
        for p in self.parameters:
            p.data -= self.lr * p.grad

    def halve(self) -> None:
        self.lr /= 2


AVERAGE = "        average(model, comm)\n"
STEP = "        optimizer.step()\n"
SCHEDULE = "        schedule.step()"
AVERAGE_BY_NAME = """
        for p in model.parameters():
            p.grad.copy_(torch.from_numpy(comm.allreduce(p.grad.numpy()) / comm.size))
"""
AVERAGE_WEIGHTS = """
    for p in model.parameters():
        p.data.copy_(torch.from_numpy(comm.allreduce(p.detach().numpy()) / comm.size))"""
train_epoch = played(
    "train_epoch",
    NOTEBOOK,
    play_loop,
    [
        Edit("Each rank trains alone: call `average` before the optimizer steps.", (AVERAGE, "")),
        Edit(
            "The gradients are averaged, but not by `average`: call the argument of this name instead of your own "
            "`average_gradients`, so that the loop works with any way to average.",
            (AVERAGE, AVERAGE_BY_NAME),
        ),
        Edit("You average after the step: by then, the optimizer has used `p.grad`.", (AVERAGE + STEP, STEP + AVERAGE)),
        Edit("`backward` adds to the gradients of the last step: clear them first.", ("optimizer.zero_grad()", "pass")),
        Edit("The learning rate never changed: call `schedule.step()` in each step.", (SCHEDULE, "")),
        Edit("The weights have not changed at all: let the optimizer step.", (STEP, "")),
        Edit(
            "That is the gradient of the summed loss: `cross_entropy` takes the mean.",
            (", labels)\n", ', labels, reduction="sum")\n'),
        ),
        Edit(
            "You average weights at the end of the epoch: average the gradients in every step instead.",
            (AVERAGE, ""),
            (SCHEDULE, SCHEDULE + AVERAGE_WEIGHTS),
        ),
    ],
    rounding=ROUNDING,
    stuck="every rank must average as often as the others: is `average` inside an `if`?",
    unknown="For each batch: clear the gradients, compute the loss, go backward, average, step, and step the schedule.",
)


def play_broadcast(broadcast_weights: Callable, comm) -> Iterator[tuple]:
    """Call it on ranks whose weights differ."""
    model = torch_cnn.build(seed=10 + comm.rank)
    of_rank_0 = comm.bcast(weights_by_name(model))
    broadcast_weights(model, comm)
    got = weights_by_name(model)
    wrong = {name: got[name] for name in got if not np.array_equal(got[name], of_rank_0[name])}
    observed = f"on rank {comm.rank}, {next(iter(wrong), '')} is not that of rank 0."
    advice = ""
    if len(wrong) < len(got):
        advice = f"But other parameters are: {ALL_PARAMETERS}"
    yield "every rank has the weights of rank 0, to the last bit", wrong, observed, advice


COPY = "p.copy_(torch.from_numpy(array))"
SEND = "comm.Bcast(array, root=0)"
broadcast_weights = played(
    "broadcast_weights",
    NOTEBOOK,
    play_broadcast,
    [
        Edit("Each rank still has its own weights: copy what arrives into the parameter.", (COPY, "pass")),
        Edit("Those are the weights of the last rank: the root is rank 0.", ("root=0", "root=comm.size - 1")),
        Edit(
            "That is the mean of the ranks' weights: every rank needs those of rank 0.",
            (SEND, "array = comm.allreduce(array) / comm.size"),
        ),
        Edit(
            "That is the sum of the ranks' weights: every rank needs those of rank 0.",
            (SEND, "array = comm.allreduce(array)"),
        ),
        Edit(
            "They were rounded to 16 bits on the way: send them as they are, in 32.",
            (SEND, 'array = comm.bcast(array.astype("float16"))'),
        ),
    ],
    stuck=STUCK,
    unknown="Send the array from rank 0 with Bcast, copy what arrived into the parameter, and change nothing else.",
)


def play_weighted(weighted_mean: Callable, comm) -> Iterator[tuple]:
    """Each sample's gradient is a random vector of 6 numbers."""
    uneven = [comm.size + 1 + 2 * rank for rank in range(comm.size)]
    without_rank_1 = [0 if rank == 1 else n for rank, n in enumerate(uneven)]
    for text, counts in (
        ("it is the gradient of the mean loss of all samples", uneven),
        ("also when a rank has no samples", without_rank_1),
    ):
        of_samples = np.random.default_rng(5).normal(size=(sum(counts), 6))
        first = sum(counts[: comm.rank])
        own = of_samples[first : first + counts[comm.rank]]
        gradient = own.mean(axis=0) if len(own) else np.zeros(6)
        yield text, weighted_mean(gradient, len(own), comm)


WEIGHED = "gradient * n_samples"
ADD_UP = "comm.Allreduce(weighted, total)"
DIVIDE = "total / comm.allreduce(n_samples)"
_WEIGH = "Weigh each gradient by its number of samples."
weighted_mean = played(
    "weighted_mean",
    NOTEBOOK,
    play_weighted,
    [
        Edit(f"That is the plain mean over ranks. {_WEIGH}", (WEIGHED, "gradient"), (DIVIDE, "total / comm.size")),
        Edit(f"That is the plain sum over ranks. {_WEIGH}", (WEIGHED, "gradient"), (DIVIDE, "total")),
        Edit("That is the sum over all samples: divide by their number.", (DIVIDE, "total")),
        Edit("Divide by the number of all samples, not of ranks.", (DIVIDE, "total / comm.size")),
        Edit("You divided by this rank's count: add up counts.", (DIVIDE, "total / max(1, n_samples)")),
        Edit("That is this rank's part of the mean: add up all parts.", (ADD_UP, "total = weighted")),
        Edit("Each rank returned its own gradient: add up those of all ranks.", (DIVIDE, "gradient.copy()")),
        Edit("You divided the mean over samples once more, by the number of ranks.", (DIVIDE, f"{DIVIDE} / comm.size")),
    ],
    returns="the mean",
    rounding=ROUNDING,
    stuck=STUCK,
    unknown="Weigh each gradient by its number of samples, add these up, and divide by the number of samples in all.",
)
