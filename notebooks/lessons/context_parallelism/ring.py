"""Ring attention for autograd: the forward pass is the learner's, and the backward pass is here (arXiv:2310.01889).

Both passes send each block of keys and values once around the ring, and the backward pass sends their gradients along.
A block is the keys and values of one rank. With p ranks, each rank sends p - 1 blocks forward and 2 (p - 1) backward.
All functions are called on every rank, and they block.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons.context_parallelism.blocks import BlockAttention, BlockGradients


def pass_on(tensor: Tensor, comm) -> Tensor:
    """Send a tensor to the next rank, and return the one that arrives from the rank before."""
    arriving = torch.empty_like(tensor)
    after = (comm.rank + 1) % comm.size
    before = (comm.rank - 1) % comm.size
    comm.Sendrecv(tensor.numpy(), after, recvbuf=arriving.numpy(), source=before)
    return arriving


def ring_backward(
    query: Tensor, key: Tensor, value: Tensor, given: BlockGradients, attend: BlockAttention, comm
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of this rank's queries, keys and values."""
    grad_query, own_key, own_value = attend.backward(query, key, value, comm.rank, given)
    block = torch.stack([key, value])
    grad_block = torch.zeros_like(block)  # the ranks add to it and pass it on
    for step in range(1, comm.size):
        block = pass_on(block, comm)
        if step > 1:
            grad_block = pass_on(grad_block, comm)
        source = (comm.rank - step) % comm.size
        more_query, more_key, more_value = attend.backward(query, block[0], block[1], source, given)
        grad_query += more_query
        grad_block += torch.stack([more_key, more_value])
    if comm.size > 1:
        grad_block = pass_on(grad_block, comm)  # the last step home
    return grad_query, own_key + grad_block[0], own_value + grad_block[1]


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, forward, attend, comm):
        query, key, value = (each.detach().contiguous() for each in (query, key, value))
        out, logsumexp = forward(query, key, value)
        ctx.save_for_backward(query, key, value, out, logsumexp)
        ctx.attend = attend
        ctx.comm = comm
        return out

    @staticmethod
    def backward(ctx, grad_out):
        query, key, value, out, logsumexp = ctx.saved_tensors
        given = BlockGradients(grad_out, (grad_out * out).sum(dim=3, keepdim=True), logsumexp)
        gradients = ring_backward(query, key, value, given, ctx.attend, ctx.comm)
        return *gradients, None, None, None


def with_backward(
    forward: Callable, query: Tensor, key: Tensor, value: Tensor, attend: BlockAttention, merge: Callable, comm
) -> Tensor:
    """The attention that `forward` computes in a ring, with ring_backward as its backward pass: [n, h, t, d].

    forward(query, key, value, attend, merge, comm) returns the attention and each query's logsumexp.
    """

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return forward(*tensors, attend, merge, comm)

    return _RingAttention.apply(query, key, value, run, attend, comm)
