"""How 06_zero_and_fsdp checks two exercises: sharding the optimizer's state (Zero1), then the gradients too (Zero2)."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import pad
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from workshop_lib.judge import Exercise, Mistake, Property, close
from workshop_lib.judge.network import backward, batch, network, weights_of
from workshop_lib.lessons.mpi_basics import ring
from workshop_lib.lessons.mpi_basics.counting import CountingComm

STEPS = 3
LR = 0.1


def make_sgd(parameters: Iterable) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters), lr=LR, momentum=0.9)


def load_optimizers() -> None:
    """Create an optimizer, because a process's first one loads much of PyTorch. A check then doesn't wait for that."""
    make_sgd(network().parameters())


@functools.cache
def alone(size: int) -> list[np.ndarray]:
    """The weights of one process that trains with the global batch of all ranks, at the start and after each step."""
    model = network()
    optimizer = make_sgd(model.parameters())
    weights = [weights_of(model)]
    for step in range(STEPS):
        backward(model, [batch(rank, step) for rank in range(size)])
        optimizer.step()
        weights.append(weights_of(model))
    return weights


@dataclass(frozen=True)
class ZeroSteps:
    """What STEPS steps with the learner's class did on one rank."""

    weights: list[np.ndarray]  # after each step
    state_bytes: int  # the optimizer's state
    held_bytes: int  # gradients after backward
    held_most_bytes: int  # the most gradients at any time
    sent_bytes: float  # messages per step
    sent_in_backward_bytes: float  # messages per step, as far as they were sent during backward


def observe_steps(comm, make: Callable) -> ZeroSteps:
    """Train a few steps with the learner's class, on the rank's own samples."""
    model = network()
    counting = CountingComm(comm)
    zero: Any = None
    weights: list[np.ndarray] = []
    held_bytes: list[int] = []  # after each gradient that backward finishes, and after backward
    in_backward_bytes = 0

    def count_held(*_) -> None:
        shares = [] if zero is None else [p for group in zero.optimizer.param_groups for p in group["params"]]
        everything = {id(p): p for p in [*model.parameters(), *shares]}
        held_bytes.append(sum(p.grad.nbytes for p in everything.values() if p.grad is not None))

    for parameter in model.parameters():  # these hooks come before the class's own, so they run first
        parameter.register_post_accumulate_grad_hook(count_held)
    zero = make(model, counting, make_sgd)
    before = counting.bytes_sent
    for step in range(STEPS):
        zero.optimizer.zero_grad()  # gradients left over from the last step don't count
        sent = counting.bytes_sent
        backward(model, [batch(comm.rank, step)])
        count_held()
        in_backward_bytes += counting.bytes_sent - sent
        zero.step()
        weights.append(weights_of(model))
    states = [value for state in zero.optimizer.state.values() for value in state.values()]
    return ZeroSteps(
        weights,
        state_bytes=sum(value.nbytes for value in states if isinstance(value, torch.Tensor)),
        held_bytes=held_bytes[-1],
        held_most_bytes=max(held_bytes),
        sent_bytes=(counting.bytes_sent - before) / STEPS,
        sent_in_backward_bytes=in_backward_bytes / STEPS,
    )


def zero_properties(ranks: list[ZeroSteps], together: bool) -> Iterator[Property]:
    """Yield what must hold of Zero1, with one buffer for all parameters (`together`), or of Zero2, with one for each.

    The buffers are float64, and padded to a multiple of the number of ranks.
    """
    counts = [p.numel() for p in network().parameters()]
    whole = sum(8 * (n + -n % len(ranks)) for n in ([sum(counts)] if together else counts))
    yield from _weights_are_right(ranks)
    if not together:
        yield from _gradients_are_shared(ranks, whole // len(ranks), max(counts))
    yield _state_is_shared(ranks, whole)
    yield _little_is_sent(ranks, whole)


def _weights_are_right(ranks: list[ZeroSteps]) -> Iterator[Property]:
    start, *right = alone(len(ranks))
    moved = [rank.weights[0] != start for rank in ranks]
    hint = "the step moves nothing. Does the share have a `.grad` before `self.optimizer.step()`?"
    yield Property("the step changes the weights", all(map(np.any, moved)), hint)
    first = ranks[0].weights
    same = all(np.array_equal(rank.weights, first) for rank in ranks)
    if not any(rank.sent_bytes for rank in ranks):
        hint = "no rank sent anything, so each trained alone. Reduce-scatter the gradients first."
    elif not np.any(np.all(moved, axis=0)):
        hint = "each rank has new weights only in its own part. End the step with an allgather of the weights."
    else:
        hint = "call `self.optimizer.step()` first, then `ring.allgather` on the weights that it has updated."
    yield Property("after each step the ranks hold the same weights, to the last bit", same, hint)
    text = "the first step is that of one process with the global batch"
    yield Property(text, close(first[0], right[0]), evidence=start - first[0])
    hint = "is the gradient of the step before still in a share's `.grad`, or is the optimizer's state lost?"
    yield Property(f"so are {STEPS} steps with momentum", close(first[-1], right[-1]), hint)


def _state_is_shared(ranks: list[ZeroSteps], whole: int) -> Property:
    share = whole // len(ranks)
    held = [rank.state_bytes for rank in ranks]
    hint = f"rank 0 holds {held[0]} bytes of state, but its share is {share}. "
    hint += "Make the optimizer for the shares, not for the model's parameters."
    return Property(f"a rank holds 1/{len(ranks)} of the optimizer's state", set(held) == {share}, hint)


def _little_is_sent(ranks: list[ZeroSteps], whole: int) -> Property:
    ring_bytes = 2 * (len(ranks) - 1) / len(ranks) * whole  # an allreduce (Patarasuk and Yuan 2009)
    most = max(rank.sent_bytes for rank in ranks)
    hint = f"a rank sends {most:.0f} bytes per step, {most / ring_bytes:.2g} times as many as an allreduce. "
    if close(most, 1.5 * ring_bytes):
        hint += (
            "That is an allreduce of the gradients, which gathers what nobody needs, and an allgather of the weights."
        )
    else:
        hint += "One reduce-scatter of the gradients and one allgather of the weights are enough."
    return Property("a step sends as many bytes as one ring allreduce", close(most, ring_bytes), hint)


def _gradients_are_shared(ranks: list[ZeroSteps], share: int, largest: int) -> Iterator[Property]:
    rank = max(ranks, key=lambda rank: rank.held_bytes)
    hint = f"at the end of backward a rank holds {rank.held_bytes} bytes of gradients, but its share is {share}. "
    if not rank.sent_in_backward_bytes:
        hint += "Nothing was sent during backward: the reduce-scatter belongs in `reduce`, not in `step`."
    elif rank.held_bytes >= rank.weights[0].nbytes:
        hint += "The whole gradient is still there. Drop it, `p.grad = None`, as soon as you have its share."
    else:
        hint += "Keep only the share of each gradient."
    text = f"after backward a rank holds 1/{len(ranks)} of the gradients"
    yield Property(text, rank.held_bytes == share, hint)
    most = max(rank.held_most_bytes for rank in ranks)
    allowed = share + 8 * largest
    hint = f"it held {most} bytes, but may never hold more than {allowed}. Drop each gradient as soon as it is reduced."
    yield Property("and never more than its share and one gradient", most <= allowed, hint)


def _own(comm, flat: np.ndarray) -> np.ndarray:
    return flat[ring.part(len(flat), comm.rank, comm.size)].copy()


def _of_rank_0(comm, flat: np.ndarray) -> np.ndarray:
    """Rank 0's part of the mean, on every rank."""
    flat[ring.part(len(flat), comm.rank, comm.size)] = ring.reduce_scatter(comm, flat) / comm.size
    ring.allgather(comm, flat)
    return flat[ring.part(len(flat), 0, comm.size)].copy()


_OWN = "a part is updated from its own rank's samples alone. `ring.reduce_scatter` adds up all ranks' gradients."
_WRONG_GRADIENTS: list[tuple[Callable, str]] = [
    (_own, _OWN),
    (lambda comm, flat: _own(comm, flat) / comm.size, _OWN),
    (ring.reduce_scatter, "the gradient is the sum over ranks, not the mean: divide by `self.comm.size`."),
    (lambda comm, flat: ring.reduce_scatter(comm, flat) / comm.size**2, "the number of ranks is divided by twice."),
    (_of_rank_0, "rank 0's part of the gradients updates every part. Each rank needs those of its own part."),
]


def _wrong_zero(together: bool, mean: Callable) -> Callable:
    """A class that takes the steps of a wrong `Zero1` (`together`) or `Zero2`, but doesn't shard any state.

    mean(comm, flat): what the class takes for this rank's part of the mean gradient.
    """

    class Zero:
        def __init__(self, model: nn.Module, comm: CountingComm, make_optimizer: Callable):
            self.comm = comm
            self.parameters = list(model.parameters())
            self.optimizer = make_optimizer(self.parameters)

        def step(self) -> None:
            for bucket in [self.parameters] if together else [[p] for p in self.parameters]:
                gradients = [p.grad for p in bucket if p.grad is not None]
                flat = parameters_to_vector(gradients)
                padded = pad(flat, (0, -len(flat) % self.comm.size)).numpy()
                padded[ring.part(len(padded), self.comm.rank, self.comm.size)] = mean(self.comm, padded)
                ring.allgather(self.comm, padded)
                vector_to_parameters(torch.from_numpy(padded[: len(flat)]), gradients)
            self.optimizer.step()

    return Zero


_SAME_CALLS = "every rank must make the same calls in the same order, in backward once for every parameter."
Zero1, Zero2 = (
    Exercise(
        name,
        observe_steps,
        functools.partial(zero_properties, together=together),
        [Mistake(_wrong_zero(together, mean), hint) for mean, hint in _WRONG_GRADIENTS],
        ready=load_optimizers,
        stuck=_SAME_CALLS,
        truncated=_SAME_CALLS,
    )
    for name, together in (("Zero1", True), ("Zero2", False))
)
