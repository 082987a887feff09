"""What ZeRO by hand needs around its lines: parameters as views of flat arrays that divide by the ranks."""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.functional import pad

from workshop_lib.lessons.mpi_basics import ring
from workshop_lib.training import KINDS
from workshop_lib.training.memory import storage_bytes, tensors


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that get gradients. Frozen ones need no gradient and no optimizer, so they stay as they are."""
    return [p for p in model.parameters() if p.requires_grad]


def flat_weights(parameters: Sequence[nn.Parameter], ranks: int) -> torch.Tensor:
    """The parameters in one flat array, filled up with zeros until `ranks` divides it; they become views of it."""
    flat = torch.cat([p.detach().flatten() for p in parameters])
    filled = pad(flat, (0, -len(flat) % ranks))
    for p, piece in zip(parameters, filled[: len(flat)].split([p.numel() for p in parameters]), strict=True):
        p.data = piece.view_as(p)
    return filled


def flat_gradient(parameters: Sequence[nn.Parameter], ranks: int) -> torch.Tensor:
    """Their gradients in a new flat array, laid out as `flat_weights`; zeros where backward left none."""
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    return pad(flat, (0, -len(flat) % ranks))


def release(flat: torch.Tensor) -> None:
    """Free the memory of a flat array. `fill` brings it back, also for the views that autograd keeps for backward."""
    flat.untyped_storage().resize_(0)


def fill(flat: torch.Tensor, values: torch.Tensor) -> None:
    """Give a released array its memory back, with these values."""
    flat.untyped_storage().resize_(flat.nbytes)
    flat.copy_(values)


class Stage2:
    """A model whose gradients are shared out. Subclasses say how: reduce(p) is called once backward has finished the
    gradient of a parameter, and finish(), before the step, leaves the mean gradient of each share in its `.grad`."""

    def __init__(self, model: nn.Module, comm, make_optimizer: Callable):
        self.comm = comm
        self.weights: dict[nn.Parameter, torch.Tensor] = {}  # flat arrays, which the parameters are views of
        self.shares: dict[nn.Parameter, nn.Parameter] = {}  # this rank's parts of them
        self.pending: list[tuple] = []  # for `finish`
        for p in trained(model):
            self.weights[p] = flat = flat_weights([p], comm.size)
            self.shares[p] = nn.Parameter(flat[ring.part(len(flat), comm.rank, comm.size)])
            p.register_post_accumulate_grad_hook(self.reduce)
        self.optimizer = make_optimizer(self.shares.values())

    def reduce(self, p: nn.Parameter) -> None:
        raise NotImplementedError("reduce(p): start to reduce the gradient of p")

    def finish(self) -> None:
        raise NotImplementedError("finish(): wait for what `reduce` has started")

    def step(self) -> None:
        self.finish()
        self.optimizer.step()
        for flat in self.weights.values():
            ring.allgather(self.comm, flat.numpy())


class Sharded:
    """A model whose weights are there only while their layer computes. Subclasses say how, in three methods:

    gather(layer) before the layer computes, in forward and again in backward; drop(layer) after its forward; and
    reduce(p) once backward has finished the gradient of a parameter. A layer is whatever has parameters of its own.
    Layers compute in the order in which the model lists them. A subclass that looks ahead overrides `enter`.
    """

    def __init__(self, model: nn.Module, comm, make_optimizer: Callable):
        self.comm = comm
        self.weights: dict[nn.Parameter, torch.Tensor] = {}  # flat arrays that come and go
        self.shares: dict[nn.Parameter, nn.Parameter] = {}  # what this rank keeps of them
        for p in trained(model):
            self.weights[p] = flat = flat_weights([p], comm.size)
            self.shares[p] = nn.Parameter(flat[ring.part(len(flat), comm.rank, comm.size)].clone())
            release(flat)
            p.register_post_accumulate_grad_hook(self.reduce)
        self.parameters = {
            layer: [p for p in layer.parameters(recurse=False) if p in self.shares] for layer in model.modules()
        }
        self.layers = [layer for layer, parameters in self.parameters.items() if parameters]
        for at, layer in enumerate(self.layers):
            neighbours = [None, *self.layers, None][at : at + 3 : 2]
            layer.register_forward_pre_hook(functools.partial(self._before, neighbours[1]))
            layer.register_forward_hook(functools.partial(self._after, neighbours[0]))
        self.optimizer = make_optimizer(self.shares.values())

    def _before(self, following: nn.Module | None, layer: nn.Module, inputs) -> None:
        self.enter(layer, following)

    def _after(self, previous: nn.Module | None, layer: nn.Module, inputs, outputs: torch.Tensor) -> None:
        self.drop(layer)
        if outputs.requires_grad:
            outputs.register_hook(lambda _: self.enter(layer, previous))  # when backward comes to this layer

    def enter(self, layer: nn.Module, following: nn.Module | None) -> None:
        """Called before a layer computes, with the one that computes next in this forward or backward."""
        self.gather(layer)

    def gather(self, layer: nn.Module) -> None:
        raise NotImplementedError("gather(layer): fill the layer's weights from the ranks' shares")

    def drop(self, layer: nn.Module) -> None:
        for p in self.parameters[layer]:
            release(self.weights[p])

    def reduce(self, p: nn.Parameter) -> None:
        raise NotImplementedError("reduce(p): the mean gradient of this rank's share of p")

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def live_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of a model's states on this rank, by KINDS, where the optimizer steps on shares: these and their gradients
    count, and memory that a share and a parameter have in common counts once."""
    everything = [*model.parameters(), *(p for group in optimizer.param_groups for p in group["params"])]
    states = [everything, [p.grad for p in everything], list(optimizer.state.values())]
    return dict(zip(KINDS, map(storage_bytes, map(tensors, states)), strict=True))
