"""The bookkeeping for ZeRO by hand in 06_zero_and_fsdp: parameters as views of flat arrays that ranks divide evenly.

The notebook's first classes, for stages 1 and 2, call the functions here. Its later ones are subclasses of Stage2 or
Sharded.
"""

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
    """Copy the parameters into one flat array, padded with zeros to a multiple of `ranks`; they become views of it."""
    flat = torch.cat([p.detach().flatten() for p in parameters])
    filled = pad(flat, (0, -len(flat) % ranks))
    for p, piece in zip(parameters, filled[: len(flat)].split([p.numel() for p in parameters]), strict=True):
        p.data = piece.view_as(p)
    return filled


def flat_gradient(parameters: Sequence[nn.Parameter], ranks: int) -> torch.Tensor:
    """The parameters' gradients in a new flat array with the layout of `flat_weights`; a missing gradient is zeros."""
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
    """A model whose gradients are divided among the ranks. A subclass defines two methods.

    reduce(p) is called once backward has finished the gradient of parameter p. finish() is called before the step, and
    leaves the mean gradient of each share in the share's `.grad`.
    """

    def __init__(self, model: nn.Module, comm, make_optimizer: Callable):
        self.comm = comm
        self.weights: dict[nn.Parameter, torch.Tensor] = {}  # a flat array for each parameter, which is a view of it
        self.shares: dict[nn.Parameter, nn.Parameter] = {}  # this rank's part of each flat array
        self.pending: list[tuple] = []  # what `reduce` has started, for `finish` to wait for
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
    """A model whose weights are in memory only while their layer computes. A subclass defines three methods.

    gather(layer) is called before the layer computes, in forward and again in backward, and drop(layer) after its
    forward. reduce(p) is called once backward has finished the gradient of parameter p. A layer is any module that has
    parameters of its own, and layers must compute in the order in which the model lists them. A subclass that gathers
    layers ahead of time overrides `enter`.
    """

    def __init__(self, model: nn.Module, comm, make_optimizer: Callable):
        self.comm = comm
        self.weights: dict[nn.Parameter, torch.Tensor] = {}  # flat arrays, in memory while a layer computes
        self.shares: dict[nn.Parameter, nn.Parameter] = {}  # this rank's part of each flat array
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
            neighbors = [None, *self.layers, None][at : at + 3 : 2]
            layer.register_forward_pre_hook(functools.partial(self._before, neighbors[1]))
            layer.register_forward_hook(functools.partial(self._after, neighbors[0]))
        self.optimizer = make_optimizer(self.shares.values())

    def _before(self, following: nn.Module | None, layer: nn.Module, inputs) -> None:
        self.enter(layer, following)

    def _after(self, previous: nn.Module | None, layer: nn.Module, inputs, outputs: torch.Tensor) -> None:
        self.drop(layer)
        if outputs.requires_grad:
            outputs.register_hook(lambda _: self.enter(layer, previous))  # runs when backward reaches this layer

    def enter(self, layer: nn.Module, following: nn.Module | None) -> None:
        """Prepare a layer right before it computes. `following` computes next in this forward or backward, if any."""
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
    """Bytes of a model's states on this rank, by KINDS.

    If the optimizer steps on shares, the shares and their gradients count, too. Memory that a share and a parameter
    have in common counts once.
    """
    everything = [*model.parameters(), *(p for group in optimizer.param_groups for p in group["params"])]
    states = [everything, [p.grad for p in everything], list(optimizer.state.values())]
    return dict(zip(KINDS, map(storage_bytes, map(tensors, states)), strict=True))
