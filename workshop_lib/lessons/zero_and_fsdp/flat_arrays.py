"""ZeRO's bookkeeping in 06_zero_and_fsdp: parameters as views of flat arrays, which the ranks divide into equal shards.

The notebook's classes for stages 1 and 2 call the functions here. Its later ones are subclasses of ReducedInBackward
or GatheredByLayer.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.functional import pad

from workshop_lib.collectives import ring
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


def free(flat: torch.Tensor) -> None:
    """Free the memory of a flat array. `fill` brings it back, also for the views that autograd keeps for backward."""
    flat.untyped_storage().resize_(0)


def fill(flat: torch.Tensor, values: torch.Tensor) -> None:
    """Give a freed array its memory back, with these values."""
    flat.untyped_storage().resize_(flat.nbytes)
    flat.copy_(values)


class ReducedInBackward:
    """A model whose gradients are divided among the ranks during the backward pass. A subclass defines two methods.

    reduce(p) is called once the backward pass has finished the gradient of parameter p. finish() is called before the
    step, and leaves the mean gradient of each shard in the shard's `.grad`.
    """

    def __init__(self, model: nn.Module, comm, make_optimizer: Callable):
        self.comm = comm
        self.weights: dict[nn.Parameter, torch.Tensor] = {}  # a flat array for each parameter, which is a view of it
        self.shards: dict[nn.Parameter, nn.Parameter] = {}  # this rank's part of each flat array
        self.pending: list[tuple] = []  # what `reduce` has started, for `finish` to wait for
        for p in trained(model):
            flat = flat_weights([p], comm.size)
            self.weights[p] = flat
            self.shards[p] = nn.Parameter(flat[ring.part(len(flat), comm.rank, comm.size)])
            p.register_post_accumulate_grad_hook(self.reduce)
        self.optimizer = make_optimizer(self.shards.values())

    def reduce(self, p: nn.Parameter) -> None:
        raise NotImplementedError("reduce(p): start to reduce the gradient of p")

    def finish(self) -> None:
        raise NotImplementedError("finish(): wait for what `reduce` has started")

    def step(self) -> None:
        self.finish()
        self.optimizer.step()
        for flat in self.weights.values():
            ring.allgather(self.comm, flat.numpy())


class GatheredByLayer:
    """A model whose weights are in memory only while their layer computes. A subclass defines three methods.

    gather(layer) is called before the layer computes, in the forward pass and again in the backward pass, and
    drop(layer) after its forward pass. reduce(p) is called once the backward pass has finished the gradient of
    parameter p. A layer is any module that has parameters of its own, and layers must compute in the order in which the
    model lists them. A subclass that gathers layers ahead of time overrides `enter`.
    """

    def __init__(self, model: nn.Module, comm, make_optimizer: Callable):
        self.comm = comm
        self.weights: dict[nn.Parameter, torch.Tensor] = {}  # flat arrays, in memory while a layer computes
        self.shards: dict[nn.Parameter, nn.Parameter] = {}  # this rank's part of each flat array
        for p in trained(model):
            flat = flat_weights([p], comm.size)
            self.weights[p] = flat
            self.shards[p] = nn.Parameter(flat[ring.part(len(flat), comm.rank, comm.size)].clone())
            free(flat)
            p.register_post_accumulate_grad_hook(self.reduce)
        self.parameters = {
            layer: [p for p in layer.parameters(recurse=False) if p in self.shards] for layer in model.modules()
        }
        self.layers = [layer for layer, parameters in self.parameters.items() if parameters]
        for before, layer, after in zip([None, *self.layers[:-1]], self.layers, [*self.layers[1:], None], strict=True):
            self.watch(layer, before, after)
        self.optimizer = make_optimizer(self.shards.values())

    def watch(self, layer, previous, following):
        """Gather this layer before it computes, in both passes, and drop it after its forward pass."""

        def before_forward(layer, inputs):
            self.enter(layer, following)

        def after_forward(layer, inputs, outputs):
            self.drop(layer)
            if outputs.requires_grad:  # its gradient is complete right before the backward pass needs this layer
                outputs.register_hook(lambda gradient: self.enter(layer, previous))

        layer.register_forward_pre_hook(before_forward)
        layer.register_forward_hook(after_forward)

    def enter(self, layer: nn.Module, following: nn.Module | None) -> None:
        """Prepare a layer right before it computes. `following` computes next in this pass, if there is a next one."""
        self.gather(layer)

    def gather(self, layer: nn.Module) -> None:
        raise NotImplementedError("gather(layer): fill the layer's weights from the ranks' shards")

    def drop(self, layer: nn.Module) -> None:
        for p in self.parameters[layer]:
            free(self.weights[p])

    def reduce(self, p: nn.Parameter) -> None:
        raise NotImplementedError("reduce(p): the mean gradient of this rank's shard of p")

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def live_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of a model's states on this rank, by KINDS.

    If the optimizer steps on shards, the shards and their gradients count, too. Memory that a shard and a parameter
    have in common counts once.
    """
    everything = [*model.parameters(), *(p for group in optimizer.param_groups for p in group["params"])]
    states = [everything, [p.grad for p in everything], list(optimizer.state.values())]
    return dict(zip(KINDS, map(storage_bytes, map(tensors, states)), strict=True))
