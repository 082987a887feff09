"""What 11_model_parallelism trains, on one process and on ranks that share layers, and how it compares the two."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from workshop_lib.machine import world
from workshop_lib.training import rendezvous
from workshop_lib.training.collectives import ring
from workshop_lib.training.collectives.counting import CountingComm
from workshop_lib.training.data import mnist
from workshop_lib.training.models import torch_cnn, vit

from lessons.fitting_more.saved import kept_for_backward
from lessons.model_parallelism.cut import cut_block, sum_once
from lessons.model_parallelism.tensors import allreduce

IMAGES = 64  # in a step
TOKENS = 25  # of an image
BLOCKS = vit.DEPTH
ALL_IMAGES = slice(None)


def batch(step: int, images: slice = ALL_IMAGES) -> tuple[Tensor, Tensor]:
    """Return these of a step's 64 images of MNIST, and their labels."""
    split = mnist.load("train")
    rows = slice(IMAGES * step, IMAGES * (step + 1))
    pixels = torch_cnn.normalize(torch.tensor(split.images[rows]))
    return pixels[images], torch.tensor(split.labels[rows]).long()[images]


def network() -> nn.Sequential:
    """A vision transformer of 3 blocks with 4 heads, the same on all ranks. An image has 25 tokens of 64 numbers."""
    torch.manual_seed(1)
    return vit.vit(classes=10)


def train(
    model: nn.Module, steps: int, images: slice = ALL_IMAGES, after_backward: Callable[[nn.Module], None] | None = None
) -> None:
    """Train with SGD on these of each step's images.

    after_backward(model) is called before each step of the optimizer.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        inputs, labels = batch(step, images)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        if after_backward is not None:
            after_backward(model)
        optimizer.step()


def largest(ours: Any, theirs: Any) -> float:
    """The largest difference between tensors of two lists, as a fraction of the largest number."""
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs, strict=True))


def allreduces(model: nn.Module, counting: CountingComm) -> tuple[float, float]:
    """How many allreduces of the tokens a rank sends per block, in the forward pass and in the backward pass."""
    images, labels = batch(0)
    one = 2 * (counting.size - 1) / counting.size * len(images) * TOKENS * vit.WIDTH * 4
    before = counting.bytes_sent
    loss = cross_entropy(model(images), labels)
    between = counting.bytes_sent
    loss.backward()
    return (between - before) / one / BLOCKS, (counting.bytes_sent - between) / one / BLOCKS


def process_group_over_mpi() -> Any:
    """PyTorch's process group of all ranks, with MPI for its messages, so that they can be counted."""
    rendezvous.join_process_group(world.detect(), torch.device("cpu"))
    return rendezvous.join_over_mpi(world.detect(), torch.device("cpu"))


def share_tokens(block: Any, column: type, row: type, token_parallel: type, comm) -> list[nn.Parameter]:
    """Cut a block by heads inside attention and the MLP, and by tokens everywhere else.

    The classes are those that the learner writes. Returns the parameters that only see this rank's tokens: their
    gradients have to be summed over the ranks.
    """
    tokens = token_parallel(comm)

    class RowOfTokens(row):
        """A row-parallel layer that leaves each rank its own tokens."""

        def forward(self, x: Tensor) -> Tensor:
            return tokens.leave(linear(x, self.weight)) + self.bias

    cut_block(block, partial(column, comm=comm), partial(RowOfTokens, comm=comm))
    attention = block.attention
    mlp = block.mlp
    for layer in (attention.query, attention.key, attention.value, mlp.up):
        layer.comm = MPI.COMM_SELF  # `enter` adds up the gradients instead
    for part in (attention, mlp):
        part.register_forward_pre_hook(lambda _, inputs: tokens.enter(inputs[0]))
    return [*block.norm_1.parameters(), *block.norm_2.parameters(), attention.out.bias, mlp.down.bias]


def ways_to_cut(column: type, row: type, token_parallel: type, comm) -> list[list]:
    """Run one block whole, cut by tensors, and by tensors and tokens. All ranks call it.

    The arguments are the learner's classes. Returns a row for each: how it is cut, the largest difference to the whole
    block, the bytes sent, those of them for norms and biases, and the bytes that are kept for the backward pass.
    """
    images, _ = batch(0)
    rows = []
    whole: list[Any] = []
    tokens = network()[0](images)[:, : TOKENS - 1].detach()  # 24 tokens, which divide by 2, 3 and 4 ranks
    for way in ("nothing", "tensors", "tensors and tokens"):
        block: Any = network()[1]
        norm = block.norm_1
        counting = CountingComm(comm)
        in_parts: list[nn.Parameter] = []
        here = slice(None)
        if way == "tensors":
            cut_block(block, partial(column, comm=counting), partial(row, comm=counting))
            sum_once(block.attention, counting)
        if way == "tensors and tokens":
            in_parts = share_tokens(block, column, row, token_parallel, counting)
            here = ring.part(TOKENS - 1, comm.rank, comm.size)
        x = tokens[:, here].clone().requires_grad_()
        output, kept = kept_for_backward(partial(block, x), block)
        output.square().sum().backward()
        sent = counting.bytes_sent
        for p in in_parts:
            assert p.grad is not None
            p.grad = allreduce(counting, p.grad)
        seen: list[Any] = [output, x.grad, norm.weight.grad]
        if not whole:
            whole = seen
        expected = [whole[0][:, here], whole[1][:, here], whole[2]]
        rows.append([way, largest(seen, expected), sent, counting.bytes_sent - sent, kept])
    return rows
