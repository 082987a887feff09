"""Ring collectives on PyTorch tensors, and what autograd needs to communicate in the backward pass, too.

11_model_parallelism builds its layers from these functions. All ranks call the collectives, in the same order, and they
block. `comm` is an MPI communicator or a CountingComm, and tensors are on the CPU. In the docstrings, n is the size of
the whole tensor in bytes, and p the number of ranks.
"""

from collections.abc import Callable

import torch

from workshop_lib.training.collectives import ring


def allreduce(comm, tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum over ranks as a new tensor. Each rank sends 2 (p - 1) messages, in total 2 (p - 1) / p n bytes."""
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    ring.allreduce(comm, total.numpy().reshape(-1))
    return total


def reduce_scatter(comm, tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Return this rank's part, along `dim`, of the sum over ranks. Each rank sends (p - 1) / p n bytes.

    Raises InputError when p does not divide the length of `dim`.
    """
    rows = tensor.detach().movedim(dim, 0).contiguous()
    return torch.from_numpy(ring.reduce_scatter(comm, rows.numpy())).movedim(0, dim).contiguous()


def allgather(comm, tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the ranks' tensors, joined along `dim` by rank. Each rank sends (p - 1) / p n bytes."""
    part = tensor.detach().movedim(dim, 0)
    whole = part.new_empty(len(part) * comm.size, *part.shape[1:])
    whole[ring.part(len(whole), comm.rank, comm.size)] = part
    ring.allgather(comm, whole.numpy())
    return whole.movedim(0, dim).contiguous()  # otherwise each layer that reads it would keep its own ordered copy


def alltoall(comm, parts: torch.Tensor) -> torch.Tensor:
    """Send parts[r] to rank r, and return what arrives, by the rank that sent it. Each rank sends p - 1 messages."""
    going = parts.detach().contiguous()
    coming = torch.empty_like(going)
    coming[comm.rank] = going[comm.rank]
    for distance in range(1, comm.size):
        dest = (comm.rank + distance) % comm.size
        source = (comm.rank - distance) % comm.size
        comm.Sendrecv(going[dest].numpy(), dest, recvbuf=coming[source].numpy(), source=source)
    return coming


class _BothWays(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_function = backward
        return forward(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_function(gradient), None, None


def both_ways(x: torch.Tensor, forward: Callable, backward: Callable) -> torch.Tensor:
    """Return forward(x). When the gradient of the result arrives in the backward pass, x gets backward(gradient).

    Both functions take one tensor.
    """
    return _BothWays.apply(x, forward, backward)


def same(x: torch.Tensor) -> torch.Tensor:
    """Return x as it is, and send nothing."""
    return x


def shard(tensor: torch.Tensor | None, dim: int, comm) -> torch.nn.Parameter | None:
    """Return a parameter with a copy of this rank's part of a tensor along `dim`; None if `tensor` is None.

    Raises InputError when the ranks cannot get equal parts.
    """
    if tensor is None:
        return None
    mine = ring.part(tensor.shape[dim], comm.rank, comm.size)
    return torch.nn.Parameter(tensor.detach().movedim(dim, 0)[mine].movedim(0, dim).clone())
