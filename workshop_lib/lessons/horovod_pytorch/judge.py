"""Judges the exercises of 03_horovod_pytorch: `make_distributed` and `finish_epoch`.

A check leaves Horovod as it was before, which mostly means shut down. Known mistakes are recognized from what the ranks
did, so a check does not have to run the mistakes.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from workshop_lib.judge import Exercise, Property, close, is_number, shown
from workshop_lib.judge.network import backward, batch, gradient_of, network, weights_of

LR = 0.05
MOMENTUM = 0.9
IMAGES = 101  # not divisible by 2, 3 or 4 ranks
CLASSES = 3
LIMIT_S = 10.0  # includes the start and shutdown of Horovod


def ready() -> None:
    """Do once what is slow on fresh ranks: imports, PyTorch's first optimizer, Horovod's first start."""
    _checkpointed(0)
    with _running():
        pass


@contextlib.contextmanager
def _running():
    """Initialize Horovod, and shut it down afterwards, because its idle thread takes processor time.

    If Horovod is already running, it stays so. Each rank appears to be alone on its host, so local ranks cannot tell
    the ranks apart.
    """
    import horovod.torch as hvd  # slow to import on fresh ranks, and the notebook's own process never needs it

    was_running = hvd.is_initialized()
    if not was_running:
        hvd.init()
    try:
        with mock.patch.multiple(hvd, local_rank=lambda: 0, local_size=lambda: 1):
            yield hvd
    finally:
        if not was_running:
            hvd.shutdown()


def _momentum(optimizer, model: nn.Module) -> np.ndarray | None:
    """The momentum of all parameters in one vector; None if any parameter has none."""
    buffers = [optimizer.state.get(p, {}).get("momentum_buffer") for p in model.parameters()]
    return None if any(buffer is None for buffer in buffers) else parameters_to_vector(buffers).numpy()


def _checkpointed(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and optimizer of `rank` before the call. Rank 0's have been trained, and the other ranks' are new."""
    model = network(seed=1 + rank)
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=MOMENTUM)
    if rank == 0:
        for step in range(2):
            backward(model, [batch(0, 1 + step)])
            optimizer.step()
    model.zero_grad()
    return model, optimizer


@dataclass
class MadeDistributed:
    """What `make_distributed` did on one rank. The last five are None unless all ranks returned a wrapped optimizer."""

    type: str
    is_optimizer: bool
    is_wrapped: bool
    has_checkpoint: bool  # whether the weights equal those of rank 0's checkpoint
    is_untouched: bool  # whether the weights equal those before the call
    rates: list[float] | None = None
    momentum: np.ndarray | None = None
    expected_momentum: np.ndarray | None = None
    gradient: np.ndarray | None = None
    expected_gradient: np.ndarray | None = None


def observe_distributed(comm, function: Callable) -> MadeDistributed:
    """What the returned optimizer holds, and the gradients that it averages in one step."""
    with _running() as hvd:
        model, optimizer = _checkpointed(comm.rank)
        before = weights_of(model)
        saved, saved_optimizer = _checkpointed(0)
        returned: Any = function(model, optimizer, hvd)
        weights = weights_of(model)
        seen = MadeDistributed(
            type(returned).__name__,
            isinstance(returned, torch.optim.Optimizer),
            hasattr(returned, "synchronize") and hasattr(returned, "skip_synchronize"),
            np.array_equal(weights, weights_of(saved)),
            np.array_equal(weights, before),
        )
        # From here on all ranks must make the same calls, or one would wait for the others.
        if comm.allreduce(int(seen.is_optimizer and seen.is_wrapped)) != comm.size:
            return seen
        seen.rates = [float(group["lr"]) for group in returned.param_groups]
        seen.momentum = _momentum(returned, model)
        seen.expected_momentum = _momentum(saved_optimizer, saved)
        model.load_state_dict(saved.state_dict())
        backward(model, [batch(comm.rank, 0)])
        returned.synchronize()
        seen.gradient = gradient_of(model)
        seen.expected_gradient = backward(saved, [batch(rank, 0) for rank in range(comm.size)])
        return seen


NO_OPTIMIZER_HINT = "return what `hvd.DistributedOptimizer` gives you."
PLAIN_HINT = "a plain optimizer averages nothing, so each rank would train a network of its own. " + NO_OPTIMIZER_HINT
NOT_SENT_HINT = (
    "a rank still has its own weights. Averaging gradients keeps equal weights equal, but it doesn't make them equal. "
    "Send rank 0's first: `hvd.broadcast_parameters(model.state_dict(), root_rank=0)`."
)
ROOT_HINT = "rank 0 lost the weights of its checkpoint. All ranks get the weights of `root_rank`, so it has to be 0."
SOME_SENT_HINT = "a rank has only some of rank 0's weights: broadcast all of `model.state_dict()`."
RATE_HINTS = {  # keys: the power of the number of ranks by which the learning rate was scaled
    0: "the learning rate is still that of one process. The global batch is `hvd.size()` times larger, so multiply the "
    "rate by that. (`local_size` counts only the ranks of one host, which is 1 here.)",
    -1: "you divided the learning rate by the number of ranks: multiply it instead.",
    2: "the learning rate was scaled twice. The wrapper and your optimizer share their `param_groups`, so scale once.",
    0.5: "you multiplied the learning rate by the square root of the number of ranks: take the number itself.",
}
LOST_HINT = (
    "rank 0 lost the momentum of its checkpoint: a wrapped optimizer begins without state. Load the old optimizer's "
    "`state_dict()` into it with `load_state_dict`, before you broadcast the state."
)
STATE_HINT = "a rank lacks rank 0's momentum: call `hvd.broadcast_optimizer_state` with the *wrapped* optimizer."
SUM_HINT = (
    "they're the sum over the ranks. You've scaled the learning rate already, so leave `op` at its default, the mean."
)
COMPRESSED_HINT = "they're nearly right. Did you compress something on the way?"
SAME_CALLS_HINT = "a rank waits in a collective that another skips: all ranks must make the same calls, even rank 0."


def distributed_properties(observations: list[MadeDistributed]) -> Iterator[Property]:
    size = len(observations)
    first = observations[0]
    types = sorted({seen.type for seen in observations if not seen.is_optimizer})
    yield Property("it returns an optimizer", not types, f"it returned {', '.join(types)}: {NO_OPTIMIZER_HINT}")
    yield Property("the optimizer is wrapped by Horovod", all(seen.is_wrapped for seen in observations), PLAIN_HINT)
    other = [seen for seen in observations if not seen.has_checkpoint]
    hint = NOT_SENT_HINT if any(seen.is_untouched for seen in other) else SOME_SENT_HINT
    hint = hint if first.has_checkpoint else ROOT_HINT
    yield Property("all ranks hold the weights of rank 0's checkpoint", not other, hint)
    rates = [rate for seen in observations for rate in seen.rates or []]
    right = all(math.isclose(rate, LR * size) for rate in rates)
    powers = [power for power in RATE_HINTS if math.isclose(rates[0], LR * size**power)]
    hint = RATE_HINTS[powers[0]] if powers else f"it's {rates[0]:g}: multiply the original rate by `hvd.size()`."
    yield Property("the learning rate is scaled for all ranks", right, hint)
    kept = first.momentum is not None and np.any(first.momentum)
    yield Property("rank 0 keeps the momentum of its checkpoint", bool(kept), LOST_HINT)
    right = close(first.momentum, first.expected_momentum)
    hint = f"rank 0's momentum changed from {shown(first.expected_momentum)} to {shown(first.momentum)}."
    yield Property("rank 0's momentum is unchanged", right, hint)
    right = all(close(seen.momentum, first.expected_momentum) for seen in observations)
    yield Property("all ranks have the same momentum", right, STATE_HINT)
    right = all(close(seen.gradient, seen.expected_gradient) for seen in observations)
    hint = COMPRESSED_HINT if close(first.gradient, first.expected_gradient, 1e-2) else SUM_HINT
    yield Property("its gradients are averaged over the ranks", right, hint)


make_distributed = Exercise(
    "make_distributed",
    observe_distributed,
    distributed_properties,
    ready=ready,
    timeout_s=LIMIT_S,
    stuck=SAME_CALLS_HINT,
)


class HalfRightNetwork(nn.Module):
    """A network that is right for some images, wrong for the rest, and records which images it was given.

    An image's first element is its number; its second is 1.0 if the network should be right.
    """

    def __init__(self):
        super().__init__()
        self.tested: list[int] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.tested += images[:, 0].long().tolist()
        right = (images[:, 0].long() % CLASSES + (images[:, 1] < 0.5).long()) % CLASSES
        return nn.functional.one_hot(right, CLASSES).double()


@dataclass(frozen=True)
class Epoch:
    """What `finish_epoch` did on one rank."""

    returned: Any
    tested: list[int]
    saves: int


def _is_right(size: int) -> np.ndarray:
    """Whether the network is right for each image: bool [IMAGES]. Its accuracy differs between the ranks' parts."""
    number = np.arange(IMAGES)
    return (number % size == 0) | (number < IMAGES // 4)


def observe_epoch(comm, function: Callable) -> Epoch:
    number = torch.arange(IMAGES)
    images = torch.stack([number.double(), torch.from_numpy(_is_right(comm.size)).double()], dim=1)
    model = HalfRightNetwork()
    saved = []
    with _running() as hvd:
        returned = function(model, images, number % CLASSES, lambda: saved.append(comm.rank), hvd)
    if isinstance(returned, torch.Tensor | np.ndarray) and math.prod(returned.shape) == 1:
        returned = returned.item()
    return Epoch(returned, model.tested, len(saved))


UNSHARDED_HINT = (
    "every rank tests all images: give each its part, by `hvd.rank()` and `hvd.size()`. (`local_rank()` and "
    "`local_size()` can't tell ranks of different hosts apart, and here each rank is alone on its host.)"
)
LOCAL_PART_HINT = (
    "all ranks test the same part: `local_rank()` is 0 on every host, and here each rank is alone on its host. "
    "Use `hvd.rank()`."
)
MISSING_HINT = "some images aren't tested at all. Some parts must be one image longer: try `images[rank::size]`."
AGAIN_HINT = "some images count twice. Do the parts overlap, or did you fill them up to the same length?"
OWN_PART_HINT = "a rank returned the accuracy of its own part only: add up the ranks' counts with `hvd.allreduce`."
MEAN_HINT = "it's the mean of the ranks' accuracies, but their parts differ in size: add up *counts*, and divide last."
SHARES_HINT = "it's the sum of the ranks' accuracies: add up the ranks' counts instead, and divide by all images."
AVERAGE_HINT = "it's too small by the number of ranks: `hvd.allreduce` averages unless you pass `op=hvd.Sum`."
COUNT_HINT = "it's the number of right answers: divide it by the number of images."
OWN_COUNT_HINT = "a rank divided its own count by all images: add up the ranks' counts with `hvd.allreduce` first."
ALL_SAVE_HINT = (
    "all ranks saved, into the same file. Only the rank whose `hvd.rank()` is 0 should. `local_rank()` is 0 once on "
    "every host, and here each rank is alone on its host."
)
NO_SAVE_HINT = "nobody called `save()`. Rank 0 should, and don't forget the parentheses."
SAVED_TWICE_HINT = "one rank should save, and only once. This is how often each rank saved:"


def epoch_properties(observations: list[Epoch]) -> Iterator[Property]:
    returned = [seen.returned for seen in observations]
    size = len(observations)
    bad = next((r for r, value in enumerate(returned) if not is_number(value)), None)
    hint = "" if bad is None else f"rank {bad} returned {shown(returned[bad])}: every rank needs the number."
    yield Property("it returns a number on every rank", bad is None, hint)
    tested = [seen.tested for seen in observations]
    numbers = sum(tested, [])
    missing = len(set(numbers)) < IMAGES
    again = len(numbers) > len(set(numbers))
    if all(part == tested[0] for part in tested):
        hint = LOCAL_PART_HINT if missing else UNSHARDED_HINT
    else:
        hint = MISSING_HINT if missing else AGAIN_HINT
    yield Property("each image is tested once, by one rank", not missing and not again, hint)
    is_right = _is_right(size)
    total = np.sum(is_right)
    counts = np.array([np.sum(is_right[part]) for part in tested])
    shares = counts / [len(part) for part in tested]
    known = [
        (shares, OWN_PART_HINT),
        (np.mean(shares), MEAN_HINT),
        (np.sum(shares), SHARES_HINT),
        (total / size / IMAGES, AVERAGE_HINT),
        (total // size / IMAGES, AVERAGE_HINT),
        (total, COUNT_HINT),
        (counts / IMAGES, OWN_COUNT_HINT),
    ]
    right = np.allclose(returned, total / IMAGES, rtol=1e-6, atol=0)
    hint = next((hint for values, hint in known if np.allclose(returned, values, rtol=1e-6)), "")
    yield Property("it is the accuracy of all images together", right, hint)
    saves = [seen.saves for seen in observations]
    hint = ALL_SAVE_HINT if all(saves) else f"{SAVED_TWICE_HINT} {saves}." if any(saves) else NO_SAVE_HINT
    yield Property("exactly one rank saves", sum(saves) == 1, hint)


finish_epoch = Exercise(
    "finish_epoch", observe_epoch, epoch_properties, ready=ready, timeout_s=LIMIT_S, stuck=SAME_CALLS_HINT
)
