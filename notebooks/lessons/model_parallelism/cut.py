"""Tensor parallelism by hand (Shoeybi et al. 2019, arXiv:1909.08053): the layers of a block, each cut among the ranks.

The layers are the solutions of 11_model_parallelism. `comm` is an MPI communicator or a CountingComm.
"""

from functools import partial
from typing import Any

from mpi4py import MPI

from workshop_lib.exercises.solutions import Solution

from lessons.model_parallelism.tensors import allreduce, both_ways, same

NOTEBOOK = "11_model_parallelism"

ColumnParallel = Solution(NOTEBOOK, "ColumnParallel").load()
RowParallel = Solution(NOTEBOOK, "RowParallel").load()
cut_block = Solution(NOTEBOOK, "cut_block").load()


def sum_once(attention: Any, comm) -> None:
    """Sum the gradients of query, key and value in a single allreduce, instead of in one allreduce each."""
    for layer in (attention.query, attention.key, attention.value):
        layer.comm = MPI.COMM_SELF  # an allreduce over a single rank sends nothing
    backward = partial(allreduce, comm)
    attention.register_forward_pre_hook(lambda _, inputs: both_ways(inputs[0], forward=same, backward=backward))
