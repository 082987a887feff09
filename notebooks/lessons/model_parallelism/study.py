"""What 11_model_parallelism trains, on one process and on ranks that share layers, and how it compares the two."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from workshop_lib.machine import world
from workshop_lib.training import rendezvous
from workshop_lib.training.collectives import ring
from workshop_lib.training.data import mnist
from workshop_lib.training.models import torch_cnn, vit

from lessons.fitting_more.saved import SavedForBackward
from lessons.model_parallelism.tensors import allgather, both_ways

IMAGES = 64  # in a step
SHAPE = (23, 28)  # of an image, in pixels: 4 x 5 patches, a number that 2 and 4 ranks can divide
TOKENS_BYTES = IMAGES * 20 * vit.WIDTH * 4  # all tokens of a step


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return a step's 64 images of MNIST, without their last five rows of pixels, and their labels."""
    split = mnist.load("train")
    rows = slice(IMAGES * step, IMAGES * (step + 1))
    pixels = torch_cnn.normalize(torch.tensor(split.images[rows]))
    return pixels[:, :, : SHAPE[0]], torch.tensor(split.labels[rows]).long()


def network() -> nn.Sequential:
    """A vision transformer of 3 blocks with 4 heads, the same on all ranks. An image has 20 tokens of 64 numbers."""
    torch.manual_seed(1)
    return vit.vit(classes=10, shape=SHAPE)


def train(model: nn.Module, steps: int, after_backward: Callable[[nn.Module], None] | None = None) -> float:
    """Train with SGD, and return the loss of the last step.

    after_backward(model) is called before each step of the optimizer.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.zeros(())
    for step in range(steps):
        inputs, labels = batch(step)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        if after_backward is not None:
            after_backward(model)
        optimizer.step()
    return loss.item()


def largest(ours: Any, theirs: Any) -> float:
    """The largest difference between tensors of two lists, as a fraction of the largest number."""
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs, strict=True))


def process_group_over_mpi() -> Any:
    """PyTorch's process group of all ranks, with MPI for its messages, so that they can be counted."""
    rendezvous.join_process_group(world.detect(), torch.device("cpu"))
    return rendezvous.join_over_mpi(world.detect(), torch.device("cpu"))


class OwnTokens(nn.Module):
    """Takes this rank's tokens out of all tokens. In the backward pass, every rank gets the gradient of all tokens."""

    def __init__(self, comm):
        super().__init__()
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        return both_ways(x, partial(own_tokens, self.comm), partial(allgather, self.comm, dim=1))


class AllTokens(nn.Module):
    """Gathers the tokens of all ranks. In the backward pass, where all have the same gradient, each takes its part."""

    def __init__(self, comm):
        super().__init__()
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        return both_ways(x, partial(allgather, self.comm, dim=1), partial(own_tokens, self.comm))


def own_tokens(comm, x: Tensor) -> Tensor:
    return x[:, ring.part(x.shape[1], comm.rank, comm.size)].clone()


KEPT = {
    "norm_1": "inputs of the norms",
    "norm_2": "inputs of the norms",
    "attention.query": "tokens that attention and the MLP read",
    "attention.key": "tokens that attention and the MLP read",
    "attention.value": "tokens that attention and the MLP read",
    "mlp.up": "tokens that attention and the MLP read",
    "attention": "queries, keys, values, and weights of attention",
    "attention.out": "what the heads return",
    "mlp": "hidden activations, before and after gelu",
    "mlp.down": "hidden activations, before and after gelu",
}


def kept_in_block(model: nn.Sequential) -> dict[str, float]:
    """What the second block keeps for its backward pass, by what it is, in multiples of all tokens of the batch.

    All ranks call it. A tensor belongs to the layer that keeps it first.
    """
    images, _ = batch(0)
    block = model[len(model) // 2]
    kept = dict.fromkeys(KEPT.values(), 0.0)
    saved = SavedForBackward([model])
    inside = [""]
    counted = 0

    def account() -> None:
        nonlocal counted
        if inside[-1] in KEPT:
            kept[KEPT[inside[-1]]] += (saved.bytes - counted) / TOKENS_BYTES
        counted = saved.bytes

    def enter(name: str, *_: Any) -> None:
        account()
        inside.append(name)

    def leave(*_: Any) -> None:
        account()
        inside.pop()

    hooks = []
    for name, layer in block.named_modules():
        hooks.append(layer.register_forward_pre_hook(partial(enter, name)))
        hooks.append(layer.register_forward_hook(leave))
    with saved:
        model(images)
    for hook in hooks:
        hook.remove()
    return kept
