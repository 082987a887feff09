"""The exercises of 03_horovod_pytorch. Horovod is left as it was before, which mostly means shut down."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from workshop_lib.exercises import Exercise, Mistake, Property, close, is_number, shown

LR, MOMENTUM = 0.05, 0.9
IMAGES = 101  # does not divide by 2, 3 or 4 ranks
CLASSES = 3
LIMIT_S = 10.0  # starting and stopping Horovod included


def load():
    """Horovod itself; to import it takes a while on fresh ranks, and the notebook does without it."""
    import horovod.torch

    return horovod.torch


def ready() -> None:
    """What takes long once on fresh ranks: imports, PyTorch's first optimizer, Horovod's first start."""
    _checkpointed(0)
    with _running():
        pass


class OneRankAHost:
    """Horovod, as it would be if every rank were alone on its host: then local ranks tell nothing apart."""

    def __getattr__(self, name: str):
        return getattr(load(), name)

    def local_rank(self) -> int:
        return 0

    def local_size(self) -> int:
        return 1


@contextlib.contextmanager
def _running():
    """Horovod initialised; shut down afterwards, as its idle thread takes processor time."""
    horovod = load()
    was_running = horovod.is_initialized()
    if not was_running:
        horovod.init()
    try:
        yield OneRankAHost()
    finally:
        if not was_running:
            horovod.shutdown()


def _network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def _flat(tensors) -> np.ndarray:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).numpy().copy()


def _gradient(model: nn.Module) -> np.ndarray:
    return _flat(p.grad for p in model.parameters())


def _momentum(optimizer, model: nn.Module) -> np.ndarray | None:
    """The momentum of all parameters in one vector; None when there is none."""
    buffers = [optimizer.state.get(p, {}).get("momentum_buffer") for p in model.parameters()]
    return None if any(buffer is None for buffer in buffers) else _flat(buffers)


def _backward(model: nn.Module, rank: int) -> None:
    """A backward on this rank's samples, which differ from those of the others."""
    random = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(5, 6, generator=random, dtype=torch.float64)
    model.zero_grad()
    model(inputs).square().mean().backward()


def _checkpointed(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Model and optimizer as on this rank before the call: rank 0's have trained, the others' are new."""
    model = _network(seed=1 + rank)
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=MOMENTUM)
    if rank == 0:
        for _ in range(2):
            _backward(model, 50)
            optimizer.step()
    model.zero_grad()
    return model, optimizer


def _mean_gradient(ranks: int) -> np.ndarray:
    """The mean of the ranks' gradients with the weights of rank 0's checkpoint, computed without Horovod."""
    model, _ = _checkpointed(0)
    gradients = []
    for rank in range(ranks):
        _backward(model, rank)
        gradients.append(_gradient(model))
    return np.mean(gradients, axis=0)


@dataclass
class Distributed:
    """What `make_distributed` made on one rank. The last four are there if all ranks came that far."""

    type: str
    is_optimizer: bool
    is_wrapped: bool
    has_checkpoint: bool  # its weights are those of rank 0's checkpoint
    is_untouched: bool  # its weights are those from before the call
    rates: list[float] | None = None
    momentum: np.ndarray | None = None
    expected_momentum: np.ndarray | None = None
    gradient: np.ndarray | None = None
    expected_gradient: np.ndarray | None = None


def observe_distributed(comm, function: Callable) -> Distributed:
    """What the returned optimizer holds, and the gradients that it averages in one step."""
    with _running() as hvd:
        model, optimizer = _checkpointed(comm.rank)
        before = _flat(model.parameters())
        saved, saved_optimizer = _checkpointed(0)
        returned: Any = function(model, optimizer, hvd)
        weights = _flat(model.parameters())
        seen = Distributed(
            type(returned).__name__,
            isinstance(returned, torch.optim.Optimizer),
            hasattr(returned, "synchronize") and hasattr(returned, "skip_synchronize"),
            np.array_equal(weights, _flat(saved.parameters())),
            np.array_equal(weights, before),
        )
        # All ranks must take the same way from here, or one would wait for the others.
        if comm.allreduce(int(seen.is_optimizer and seen.is_wrapped)) != comm.size:
            return seen
        seen.rates = [float(group["lr"]) for group in returned.param_groups]
        seen.momentum, seen.expected_momentum = _momentum(returned, model), _momentum(saved_optimizer, saved)
        model.load_state_dict(saved.state_dict())
        _backward(model, comm.rank)
        returned.synchronize()
        seen.gradient, seen.expected_gradient = _gradient(model), _mean_gradient(comm.size)
        return seen


def distributed_properties(observations: list[Distributed]) -> Iterator[Property]:
    size, first = len(observations), observations[0]
    types = sorted({seen.type for seen in observations if not seen.is_optimizer})
    hint = f"it returned {', '.join(types)}: return what `hvd.DistributedOptimizer` gives."
    yield Property("it returns an optimizer", not types, "" if types == ["NoneType"] else hint, ())
    yield Property("the optimizer is wrapped by Horovod", all(seen.is_wrapped for seen in observations), evidence=())
    right = all(seen.has_checkpoint for seen in observations)
    evidence = [(seen.has_checkpoint, seen.is_untouched) for seen in observations]
    yield Property("all ranks hold the weights of rank 0's checkpoint", right, evidence=evidence)
    right = all(math.isclose(rate, LR * size) for seen in observations for rate in seen.rates or [])
    yield Property("the learning rate is that of all ranks", right, evidence=first.rates)
    kept = first.momentum is not None and np.any(first.momentum)
    yield Property("rank 0 keeps the momentum of its checkpoint", bool(kept), evidence=())
    right = close(first.momentum, first.expected_momentum)
    hint = f"rank 0's momentum has changed: it was {shown(first.expected_momentum)} and is {shown(first.momentum)}."
    yield Property("rank 0's momentum is unchanged", right, hint)
    right = all(close(seen.momentum, first.expected_momentum) for seen in observations)
    yield Property("all ranks have the same momentum", right, evidence=())
    right = all(close(seen.gradient, seen.expected_gradient) for seen in observations)
    yield Property("with it, gradients are averaged over the ranks", right, evidence=first.gradient)


def _distributed(scale=lambda hvd: hvd.size(), weights="all", root=0, state="kept", returns="wrapped", **options):
    """A wrong `make_distributed`: what the learning rate is multiplied by, which weights are broadcast from where
    ("all", "first layer", ""), what becomes of the state ("kept", "lost", "not broadcast"), what is returned."""

    def make_distributed(model, optimizer, hvd):
        for group in optimizer.param_groups:
            group["lr"] *= scale(hvd)
        chosen = {name: option(hvd) for name, option in options.items()}
        wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **chosen)
        if state != "lost":
            wrapped.load_state_dict(optimizer.state_dict())
        if weights:
            hvd.broadcast_parameters((model if weights == "all" else model[0]).state_dict(), root % hvd.size())
        if state != "not broadcast":
            hvd.broadcast_optimizer_state(wrapped, 0)
        return {"wrapped": wrapped, "plain": optimizer}.get(returns)

    return make_distributed


UNSCALED_HINT = (
    "the learning rate is still that of one process. Multiply it by `hvd.size()`, because the global batch is that "
    "many times larger. (`local_size` counts the ranks of one host, here one, not all.)"
)

make_distributed = Exercise(
    "make_distributed",
    observe_distributed,
    distributed_properties,
    [
        Mistake(_distributed(returns=""), "it returned nothing (None): `return` the wrapped optimizer."),
        Mistake(
            _distributed(returns="plain"),
            "it is a plain optimizer, which averages nothing, so each rank would train a network of its own. Return "
            "what `hvd.DistributedOptimizer` gives.",
        ),
        Mistake(
            _distributed(weights=""),
            "a rank still has its own weights: the broadcast was forgotten. Averaged gradients keep equal weights "
            "equal, they do not make them equal: `hvd.broadcast_parameters(model.state_dict(), root_rank=0)`.",
        ),
        Mistake(
            _distributed(root=-1),
            "rank 0's own weights, those of the checkpoint, are gone. The root of the broadcast is the rank whose "
            "weights all ranks get: `root_rank=0`.",
        ),
        Mistake(
            _distributed(weights="first layer"),
            "a rank has only some of rank 0's weights: broadcast all of `model.state_dict()`.",
        ),
        Mistake(_distributed(lambda hvd: 1), UNSCALED_HINT),
        Mistake(
            _distributed(lambda hvd: 1 / hvd.size()),
            "the learning rate was divided by the number of ranks: multiply it instead.",
        ),
        Mistake(
            _distributed(lambda hvd: hvd.size() ** 2),
            "the learning rate was scaled twice: wrapper and wrapped optimizer share their `param_groups`.",
        ),
        Mistake(
            _distributed(lambda hvd: hvd.size() ** 0.5),
            "the learning rate grew with the root of the number of ranks; multiply it by the number itself.",
        ),
        Mistake(
            _distributed(state="lost"),
            "rank 0's momentum, which came from the checkpoint, is lost: a wrapped optimizer begins without state. "
            "Take `optimizer.state_dict()` before, and load it into the wrapped one with `load_state_dict`, before "
            "the state is broadcast.",
        ),
        Mistake(
            _distributed(state="not broadcast"),
            "a rank does not have rank 0's momentum, so its first steps would differ, and the weights with them: "
            "`hvd.broadcast_optimizer_state`, with the *wrapped* optimizer.",
        ),
        Mistake(
            _distributed(op=lambda hvd: hvd.Sum),
            "they are the sum over the ranks, and the learning rate is scaled as well: leave `op` as it is.",
        ),
        Mistake(
            _distributed(compression=lambda hvd: hvd.Compression.fp16),
            "they are nearly right: was something compressed on the way?",
        ),
    ],
    ready=ready,
    timeout_s=LIMIT_S,
    stuck="a rank waits in a broadcast or an allreduce that another rank never starts: all ranks must make the same "
    "calls, and rank 0 too.",
)


class Counted(nn.Module):
    """A network that knows the right class of every image, and is right for some; it notes what it tested.

    An image's first element is its number, its second 1.0 where the network is to be right.
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
    """What `finish_epoch` did on one rank, and how many images the network is right about."""

    returned: Any
    tested: list[int]
    saves: int
    correct: int


def observe_epoch(comm, function: Callable) -> Epoch:
    """With a network whose accuracy differs between the ranks' parts."""
    number = torch.arange(IMAGES)
    right = (number % comm.size == 0) | (number < IMAGES // 4)
    images = torch.stack([number.double(), right.double()], dim=1)
    model, saved = Counted(), []
    with _running() as hvd:
        returned = function(model, images, number % CLASSES, lambda: saved.append(comm.rank), hvd)
    if isinstance(returned, torch.Tensor | np.ndarray) and math.prod(returned.shape) == 1:
        returned = returned.item()
    return Epoch(returned, model.tested, len(saved), int(right.sum()))


def epoch_properties(observations: list[Epoch]) -> Iterator[Property]:
    returned = [seen.returned for seen in observations]
    bad = next((r for r, value in enumerate(returned) if not is_number(value)), None)
    hint = "" if bad is None else f"rank {bad} returned {shown(returned[bad])}: every rank needs the number."
    yield Property("it returns a number on every rank", bad is None, hint)
    tested = [seen.tested for seen in observations]
    numbers = sum(tested, [])
    missing, again = len(set(numbers)) < IMAGES, len(numbers) > len(set(numbers))
    evidence = (missing, again, all(part == tested[0] for part in tested))
    yield Property("each image is tested once, by one rank", not missing and not again, evidence=evidence)
    accuracy = observations[0].correct / IMAGES
    right = all(math.isclose(value, accuracy, rel_tol=1e-6) for value in returned)
    yield Property("it is the accuracy of all images together", right, evidence=returned)
    saves = [seen.saves for seen in observations]
    yield Property("exactly one rank saves", sum(saves) == 1, evidence=saves)


def _every(n: int, hvd) -> range:
    return range(hvd.rank(), n, hvd.size())


def _block(n: int, hvd, each: int | None = None) -> np.ndarray:
    """A rank's block of `each` images, filled up from the beginning, or of as many as there are."""
    if each is None:
        return np.array_split(np.arange(n), hvd.size())[hvd.rank()]
    return np.arange(hvd.rank() * each, (hvd.rank() + 1) * each) % n


def _right(mine, part, n: int, hvd) -> float:
    return hvd.allreduce(mine, op=hvd.Sum, name="right").item() / n


def _share(op: str) -> Callable:
    def accuracy(mine, part, n, hvd):
        return hvd.allreduce(mine.double() / len(part), op=getattr(hvd, op), name="share").item()

    return accuracy


def _epoch(part: Callable = _every, accuracy: Callable = _right, saves=lambda hvd: int(hvd.rank() == 0)) -> Callable:
    """A wrong `finish_epoch`: which images this rank tests, what it returns of the right answers among them, and how
    often it saves."""

    def finish_epoch(model, images, labels, save, hvd):
        mine = list(part(len(labels), hvd))
        with torch.no_grad():
            correct = (model(images[mine]).argmax(dim=1) == labels[mine]).sum()
        for _ in range(saves(hvd)):
            save()
        return accuracy(correct, mine, len(labels), hvd)

    return finish_epoch


UNSHARDED_HINT = (
    "some images are tested again. Every rank tests all of them: give each its part, by `hvd.rank()` and "
    "`hvd.size()`. (`local_rank()` and `local_size()` do not tell the ranks of different hosts apart; here each rank "
    "is alone on its host.)"
)
MEAN_HINT = (
    "it is the mean of the ranks' accuracies. The parts are not equally long, so an image of a shorter part would "
    "count more: add up the *counts* with `op=hvd.Sum`, and divide once."
)
AVERAGE_HINT = "it is too small by the number of ranks: `hvd.allreduce` averages unless you pass `op=hvd.Sum`."

finish_epoch = Exercise(
    "finish_epoch",
    observe_epoch,
    epoch_properties,
    [
        Mistake(_epoch(lambda n, hvd: range(n)), UNSHARDED_HINT),
        Mistake(
            _epoch(lambda n, hvd: range(hvd.local_rank(), n, hvd.size())),
            "all ranks test the same part, and nobody tests the others: it was chosen by `local_rank()`, which begins "
            "at 0 on every host, and here each rank is alone on its host. Shard by `hvd.rank()`.",
        ),
        Mistake(
            _epoch(lambda n, hvd: _block(n, hvd, n // hvd.size())),
            "some images are tested by nobody. When the ranks do not divide the images, some parts must be one longer: "
            "`images[rank::size]`.",
        ),
        Mistake(
            _epoch(lambda n, hvd: _block(n, hvd, -(-n // hvd.size()))),
            "parts that are filled up to the same length count some images twice.",
        ),
        Mistake(
            _epoch(accuracy=lambda mine, part, n, hvd: mine / len(part)),
            "a rank returned the accuracy of its own part alone: add the ranks' counts with `hvd.allreduce`.",
        ),
        Mistake(_epoch(accuracy=_share("Average")), MEAN_HINT),
        Mistake(_epoch(_block, _share("Average")), MEAN_HINT),
        Mistake(
            _epoch(accuracy=_share("Sum")),
            "it is the sum of the ranks' accuracies: add up the counts of all ranks, and divide by all images.",
        ),
        Mistake(
            _epoch(accuracy=lambda mine, part, n, hvd: hvd.allreduce(mine.double(), name="mean").item() / n),
            AVERAGE_HINT,
        ),
        Mistake(_epoch(accuracy=lambda mine, part, n, hvd: hvd.allreduce(mine, name="mean").item() / n), AVERAGE_HINT),
        Mistake(
            _epoch(accuracy=lambda mine, part, n, hvd: _right(mine, part, 1, hvd)),
            "it is the number of right answers: divide it by the number of images.",
        ),
        Mistake(
            _epoch(accuracy=lambda mine, part, n, hvd: mine / n),
            "a rank divided its own count by all images: add the ranks' counts with `hvd.allreduce` first.",
        ),
        Mistake(
            _epoch(saves=lambda hvd: 1),
            "the ranks all saved, into the same file. Let the rank save whose `hvd.rank()` is 0; `local_rank()` is 0 "
            "once on every host, and here each rank has its own.",
        ),
        Mistake(_epoch(saves=lambda hvd: 0), "nobody called `save()`: it takes parentheses, on rank 0."),
        Mistake(_epoch(saves=lambda hvd: 2 * (hvd.rank() == 0)), "rank 0 saved twice: once is enough."),
    ],
    ready=ready,
    timeout_s=LIMIT_S,
    stuck="a rank waits in an allreduce that another rank never starts: all ranks must call it, under the same name, "
    "also those that do not save.",
)
