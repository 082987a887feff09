"""Tensor parallelism by hand (Shoeybi et al. 2019, arXiv:1909.08053): the layers of a block, each cut among the ranks.

In 11_model_parallelism the learner writes the same lines, and the notebook falls back on these where an exercise is
still open. `comm` is an MPI communicator or a CountingComm.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from mpi4py import MPI
from torch import Tensor, nn
from torch.nn.functional import linear

from workshop_lib.lessons.model_parallelism.tensors import allgather, allreduce, both_ways, reduce_scatter, same, shard


class ColumnParallel(nn.Module):
    """A linear layer cut by its outputs: all ranks read the same x, and rank r computes the r-th part of the outputs.

    The forward pass sends nothing. The backward pass does one allreduce, of the gradient of x.
    """

    def __init__(self, layer: nn.Linear, comm):
        super().__init__()
        self.comm = comm
        self.weight = shard(layer.weight, 0, comm)
        self.bias = shard(layer.bias, 0, comm)

    def forward(self, x: Tensor) -> Tensor:  # [..., in]
        x = both_ways(x, forward=same, backward=partial(allreduce, self.comm))
        return linear(x, self.weight, self.bias)  # [..., out / p]


class RowParallel(nn.Module):
    """A linear layer cut by its inputs: rank r reads the r-th part of them, and all ranks get the same outputs.

    The forward pass does one allreduce, of the outputs. The backward pass sends nothing.
    """

    def __init__(self, layer: nn.Linear, comm):
        super().__init__()
        self.comm = comm
        self.weight = shard(layer.weight, 1, comm)
        self.bias = nn.Parameter(layer.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:  # [..., in / p]
        part = linear(x, self.weight)  # this rank's part of each sum
        return both_ways(part, forward=partial(allreduce, self.comm), backward=same) + self.bias  # [..., out]


def cut_block(block: Any, column: Callable, row: Callable) -> None:
    """Replace each linear layer of a Block (models/vit.py) by this rank's part of it: column(layer) or row(layer).

    Each rank then has whole attention heads, and its part of the MLP's hidden units.
    """
    attention = block.attention
    mlp = block.mlp
    attention.query, attention.key = column(attention.query), column(attention.key)
    attention.value, attention.out = column(attention.value), row(attention.out)
    mlp.up, mlp.down = column(mlp.up), row(mlp.down)


def sum_once(attention: Any, comm) -> None:
    """Sum the gradients of query, key and value in a single allreduce, instead of in one allreduce each."""
    for layer in (attention.query, attention.key, attention.value):
        layer.comm = MPI.COMM_SELF  # an allreduce over a single rank sends nothing
    backward = partial(allreduce, comm)
    attention.register_forward_pre_hook(lambda _, inputs: both_ways(inputs[0], forward=same, backward=backward))


class TokenParallel:
    """Sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198): a rank has only its own tokens between layers.

    In `enter` as in `leave`, each rank sends (p - 1) / p of the bytes of all tokens, and again in the backward pass.
    """

    def __init__(self, comm):
        self.gather: Callable = partial(allgather, comm, dim=1)
        self.scatter_sums: Callable = partial(reduce_scatter, comm, dim=1)

    def enter(self, x: Tensor) -> Tensor:  # [n, t / p, w]
        return both_ways(x, forward=self.gather, backward=self.scatter_sums)  # [n, t, w]

    def leave(self, parts: Tensor) -> Tensor:  # [n, t, w], this rank's part of each sum
        return both_ways(parts, forward=self.scatter_sums, backward=self.gather)  # [n, t / p, w]
