"""How 02_synchronous_sgd checks two exercises: the mean of all ranks' gradients, and the same mean in one message."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.judge import Exercise, Mistake, Property, close
from workshop_lib.models import torch_cnn

SAMPLES = 16  # per rank
STUCK = "every rank must make the same collective calls in the same order: is one inside an `if`, or after `return`?"
ALL_PARAMETERS = "go through all of model.parameters()."
Arrays = dict[str, np.ndarray]  # a model's gradients or weights, by the parameter's name
same_but_rounding = partial(close, rounding=1e-4)  # float32 sums depend on the order of addition


@dataclass
class Parameters:
    """Gradients or weights by parameter name: those after the call (None for a missing one), and the right ones.

    weights_kept: whether a function that should average gradients left the weights alone.
    """

    got: dict[str, Any]
    right: Arrays
    weights_kept: bool = True


def observe_average(comm, function: Callable) -> Parameters:
    """Call the function on ranks with the same weights, as in training, and then on ranks whose weights differ.

    The second call shows whether the function changes the weights themselves.
    """
    images, labels = image_batch(SAMPLES * comm.size, seed=7)
    mine = slice(SAMPLES * comm.rank, SAMPLES * (comm.rank + 1))
    model = torch_cnn.build(seed=1)
    cross_entropy(model(images), labels).backward()
    whole = _gradients_of(model)
    model.zero_grad()
    cross_entropy(model(images[mine]), labels[mine]).backward()
    function(model, comm)

    other = torch_cnn.build(seed=comm.rank)
    before = weights_by_name(other)
    cross_entropy(other(images[mine]), labels[mine]).backward()
    function(other, comm)
    after = weights_by_name(other)
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


def compared(observations: list[Parameters], same: Callable) -> tuple[list[dict[str, bool]], list[tuple[int, str]]]:
    """Whether each parameter is right, by rank and name, and a list with the (rank, name) of every wrong one."""
    right = [{name: same(seen.got[name], seen.right[name]) for name in seen.right} for seen in observations]
    return right, [(rank, name) for rank, names in enumerate(right) for name, is_right in names.items() if not is_right]


def _averages(observations: list[Parameters]) -> Property:
    text = "every rank has the gradient of the global batch"
    right, wrong = compared(observations, same_but_rounding)
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
    got = observations[rank].got[name]
    whole = observations[rank].right[name]
    factor = float((got * whole).sum() / (whole * whole).sum())
    observed = f"on rank {rank}, {name} is not the mean of the ranks' gradients."
    if factor and same_but_rounding(got, factor * whole):
        observed = f"on rank {rank}, {name} is {factor:.4g} times the mean of the ranks' gradients."
    return Property(text, False, evidence=[seen.got for seen in observations], observed=observed)


def _gradients(combined: Callable, hint: str) -> Mistake:
    """A wrong `average_gradients`, which replaces each gradient with `combined(mine, comm)`, and the hint for it."""

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
        _gradients(lambda mine, comm: comm.bcast(mine), "All ranks have the gradient of rank 0, not the mean."),
        _gradients(
            lambda mine, comm: comm.bcast(mine, comm.size - 1), "All ranks have the last rank's gradient, not the mean."
        ),
    ],
    stuck=STUCK,
    unknown="Allreduce gives every rank the sum over all ranks: divide that by comm.size, and by nothing else.",
)


class CallCounter:
    """A communicator that counts the calls that may send something."""

    QUIET = ("Get_", "get_", "Dup", "Free")

    def __init__(self, comm):
        self._comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self.calls = 0

    def __getattr__(self, name: str):
        attribute = getattr(self._comm, name)
        if not callable(attribute) or name.startswith(self.QUIET):
            return attribute

        def counted(*args, **kwargs):
            self.calls += 1
            return attribute(*args, **kwargs)

        return counted


@dataclass
class CountedMessages:
    """The gradients after the function's two calls, and the messages that one call took on average."""

    gradients: Parameters
    messages_per_step: float


def observe_one_message(comm, function: Callable) -> CountedMessages:
    counting = CallCounter(comm)
    gradients = observe_average(counting, function)
    return CountedMessages(gradients, counting.calls / 2)


def one_message_properties(observations: list[CountedMessages]) -> Iterator[Property]:
    yield from average_properties([seen.gradients for seen in observations])
    most = max(seen.messages_per_step for seen in observations)
    hint = f"they went in {most:g} messages: put all gradients into one array first, as with `torch.cat`."
    yield Property("all gradients go in one message", most == 1, hint)


average_in_one_message = Exercise(
    "average_in_one_message",
    observe_one_message,
    one_message_properties,
    average_gradients.mistakes,
    stuck=STUCK,
    truncated="the ranks sent arrays of different lengths: put the same parameters into it on every rank.",
    unknown="Copy the parts back in the order in which you put them in, each as long as its parameter.",
)


def image_batch(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images [samples, 1, 28, 28] and labels [samples], the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(samples, 1, 28, 28, generator=generator)
    return images, torch.randint(10, (samples,), generator=generator)


def weights_by_name(model) -> Arrays:
    return {name: p.detach().clone().numpy() for name, p in model.named_parameters()}


def _gradients_of(model) -> dict:
    """The gradients by parameter name, with None for a parameter that has no gradient."""
    return {name: None if p.grad is None else p.grad.clone().numpy() for name, p in model.named_parameters()}
