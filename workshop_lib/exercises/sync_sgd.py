"""The exercises of 02_synchronous_sgd: averaged gradients, broadcast weights, and a mean over all ranks' samples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.exercises import Exercise, Mistake, Property, close, shown
from workshop_lib.models import torch_cnn

SAMPLES = 16  # per rank
STUCK = "every rank must make the same collective calls in the same order: is one inside an `if`, or after `return`?"
ALL_PARAMETERS = "go through all of model.parameters()."
Arrays = dict[str, np.ndarray]  # a model's gradients or weights, by the parameter's name
_close = partial(close, rounding=1e-4)  # float32, added up in another order


@dataclass
class Parameters:
    """Gradients, or weights, after the call (None where there is none), and what is right.

    weights_kept: whether a function that should average gradients left the weights alone.
    """

    got: dict[str, Any]
    right: Arrays
    weights_kept: bool = True


def observe_average(comm, function: Callable) -> Parameters:
    """Two calls: on ranks with the same weights, as in training; and on ranks whose weights differ, which shows whether
    weights are averaged.
    """
    images, labels = _batch(SAMPLES * comm.size)
    mine = slice(SAMPLES * comm.rank, SAMPLES * (comm.rank + 1))
    model = torch_cnn.build(seed=1)
    cross_entropy(model(images), labels).backward()
    whole = _gradients_of(model)
    model.zero_grad()
    cross_entropy(model(images[mine]), labels[mine]).backward()
    function(model, comm)

    other = torch_cnn.build(seed=comm.rank)
    before = _weights(other)
    cross_entropy(other(images[mine]), labels[mine]).backward()
    function(other, comm)
    after = _weights(other)
    kept = all(np.array_equal(before[name], after[name]) for name in before)
    return Parameters(_gradients_of(model), whole, kept)


def average_properties(observations: list[Parameters]) -> Iterator[Property]:
    kept = all(seen.weights_kept for seen in observations)
    yield Property("the weights are left alone", kept, "the weights themselves changed: average `p.grad`, not `p`.")
    gone = [name for seen in observations for name, got in seen.got.items() if got is None]
    hint = f"{gone[0]} has none: write into `p.grad`, as with `p.grad.copy_(…)`." if gone else ""
    yield Property("every parameter has its gradient", not gone, hint)
    yield _averages(observations)
    first = observations[0].got
    same = all(np.array_equal(seen.got[name], first[name]) for seen in observations for name in first)
    hint = "they agree only roughly: every rank must get the same sum, as from one Allreduce."
    yield Property("the ranks' gradients are equal to the last bit", same, hint)


def _compared(observations: list[Parameters], same: Callable) -> tuple[list[dict[str, bool]], list[tuple[int, str]]]:
    """Which parameters are right, by rank and name; and (rank, name) of those that are not."""
    right = [{name: same(seen.got[name], seen.right[name]) for name in seen.right} for seen in observations]
    return right, [(rank, name) for rank, names in enumerate(right) for name, is_right in names.items() if not is_right]


def _averages(observations: list[Parameters]) -> Property:
    text = "every rank has the gradient of the global batch"
    right, wrong = _compared(observations, _close)
    if not wrong:
        return Property(text, True)
    rank, name = wrong[0]
    right_on = [at for at, of_rank in enumerate(right) if of_rank[name]]
    if right_on:
        return Property(
            text, False, f"{name} is right on rank {right_on[0]}, but not on rank {rank}: all need the mean."
        )
    if any(right[rank].values()):
        return Property(text, False, f"{name} is not averaged on rank {rank}, others are: {ALL_PARAMETERS}")
    got, whole = observations[rank].got[name], observations[rank].right[name]
    factor = float((got * whole).sum() / (whole * whole).sum())
    observed = f"on rank {rank}, {name} is not the mean of the ranks' gradients."
    if factor and _close(got, factor * whole):
        observed = f"on rank {rank}, {name} is {factor:.4g} times the mean of the ranks' gradients."
    return Property(text, False, evidence=[seen.got for seen in observations], observed=observed)


def _gradients(combined: Callable, hint: str) -> Mistake:
    """A wrong `average_gradients`: each gradient becomes `combined(mine, comm)`."""

    def average_gradients(model, comm):
        for p in model.parameters():
            p.grad.copy_(torch.from_numpy(combined(p.grad.numpy().copy(), comm)))

    return Mistake(average_gradients, hint)


average_gradients = Exercise(
    "average_gradients",
    observe_average,
    average_properties,
    [
        _gradients(lambda mine, comm: comm.allreduce(mine), "That is the sum over ranks: divide by comm.size."),
        _gradients(
            lambda mine, comm: comm.allreduce(mine) / comm.size**2, "That is the mean, divided by comm.size once more."
        ),
        _gradients(lambda mine, comm: mine, "Each rank still has its own gradient: write the mean into `p.grad`."),
        _gradients(lambda mine, comm: mine / comm.size, "Each rank divided its own gradient: use Allreduce to add up."),
        _gradients(lambda mine, comm: 0 * mine, "It is zero on every rank: write the mean into `p.grad`."),
        _gradients(lambda mine, comm: comm.bcast(mine), "All have the gradient of rank 0: they need the mean."),
        _gradients(
            lambda mine, comm: comm.bcast(mine, comm.size - 1), "All have the last rank's gradient: they need the mean."
        ),
    ],
    stuck=STUCK,
    unknown="Allreduce gives every rank the sum over all ranks: divide that by comm.size, and by nothing else.",
)


def observe_broadcast(comm, function: Callable) -> Parameters:
    """One call on ranks whose weights differ."""
    model = torch_cnn.build(seed=10 + comm.rank)
    right = comm.bcast(_weights(model))
    function(model, comm)
    return Parameters(_weights(model), right)


def broadcast_properties(observations: list[Parameters]) -> Iterator[Property]:
    text = "every rank has the weights of rank 0, to the last bit"
    right, wrong = _compared(observations, np.array_equal)
    hint, observed = "", ""
    if wrong:
        rank, name = wrong[0]
        observed = f"on rank {rank}, {name} is not that of rank 0."
        if any(right[rank].values()):
            hint = f"on rank {rank}, {name} is not that of rank 0, but other parameters are: {ALL_PARAMETERS}"
    yield Property(text, not wrong, hint, [seen.got for seen in observations], observed)


def _set_weights(combined: Callable, hint: str) -> Mistake:
    """A wrong `broadcast_weights`: each parameter becomes `combined(mine, comm)`."""

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
            "That is the mean of the ranks' weights: all take those of rank 0 instead.",
        ),
        _set_weights(
            lambda mine, comm: comm.allreduce(mine),
            "That is the sum of the ranks' weights: all take those of rank 0 instead.",
        ),
        _set_weights(
            lambda mine, comm: comm.bcast(mine.astype(np.float16)).astype(np.float32),
            "They were rounded to 16 bits on the way: send them as they are, in 32.",
        ),
    ],
    stuck=STUCK,
    unknown="Send the array from rank 0 with Bcast, copy what arrived into the parameter, and change nothing else.",
)


@dataclass
class Weighted:
    """One call on one rank: what it returned, the mean of one vector per sample, and whether its input was kept."""

    returned: Any
    right: np.ndarray
    unchanged: bool


def observe_weighted(comm, function: Callable) -> tuple[Weighted, Weighted]:
    """Two calls: every rank with a different number of samples, then rank 1 with none."""
    uneven = [comm.size + 1 + 2 * rank for rank in range(comm.size)]
    calls = []
    for counts in (uneven, [0 if rank == 1 else n for rank, n in enumerate(uneven)]):
        of_samples = np.random.default_rng(5).normal(size=(sum(counts), 6))
        first = sum(counts[: comm.rank])
        own = of_samples[first : first + counts[comm.rank]]
        gradient = own.mean(axis=0) if len(own) else np.zeros(6)
        given = gradient.copy()
        returned = function(given, len(own), comm)
        calls.append(Weighted(returned, of_samples.mean(axis=0), np.array_equal(given, gradient)))
    return calls[0], calls[1]


def weighted_properties(observations: list[tuple[Weighted, Weighted]]) -> Iterator[Property]:
    uneven, with_none = zip(*observations, strict=True)
    other = [(rank, call.returned) for rank, call in enumerate(uneven) if np.shape(call.returned) != call.right.shape]
    hint = ""
    if other:
        rank, returned = other[0]
        advice = "`return` the mean" if returned is None else "an array like `gradient` is needed"
        hint = f"rank {rank} returned {shown(returned)}: {advice}."
    yield Property("every rank returns an array like its gradient", not other, hint)
    for text, calls in (
        ("it is the gradient of the mean loss of all samples", uneven),
        ("also when a rank has no samples", with_none),
    ):
        returned = [call.returned for call in calls]
        wrong = [rank for rank, call in enumerate(calls) if not _close(call.returned, call.right)]
        observed = ""
        if wrong:
            rank = wrong[0]
            observed = f"rank {rank} returned {shown(returned[rank])}, but the mean is {shown(calls[rank].right)}."
        yield Property(text, not wrong, evidence=returned, observed=observed)
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
            lambda g, n, comm: comm.allreduce(g * n) / comm.size, "Divide by the samples of all ranks, not the ranks."
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


def _batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same random images and labels on every rank."""
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(samples, 1, 28, 28, generator=generator)
    return images, torch.randint(10, (samples,), generator=generator)


def _weights(model) -> Arrays:
    return {name: p.detach().clone().numpy() for name, p in model.named_parameters()}


def _gradients_of(model) -> dict:
    """Each parameter's gradient; None where there is none."""
    return {name: None if p.grad is None else p.grad.clone().numpy() for name, p in model.named_parameters()}
