"""Two other ways to shard attention by tokens: gather all keys and values, or trade tokens for heads (Ulysses).

In shapes, n is the number of sequences, h of heads, t of all tokens, d of numbers per head, and p of ranks. All
functions are called on every rank, they block, and autograd goes back through them.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from workshop_lib.errors import InputError

from lessons.context_parallelism.blocks import BlockAttention
from lessons.model_parallelism.tensors import allgather, alltoall, both_ways, reduce_scatter


def gathered(query: Tensor, key: Tensor, value: Tensor, attend: BlockAttention, comm) -> Tensor:
    """This rank's queries over all keys and values, which every rank gathers: [n, h, t / p, d].

    Of `attend`, it only needs the positions. Each half of a rank's tokens must be neighbors, as they are in order and
    with zigzag: then each half needs only the keys up to its own last token, and a plain causal kernel. Each rank sends
    p - 1 blocks of keys and values forward, and as many bytes of gradients backward.
    """
    gather = partial(allgather, comm, dim=2)
    scatter_sums = partial(reduce_scatter, comm, dim=2)
    key = both_ways(key, forward=gather, backward=scatter_sums)
    value = both_ways(value, forward=gather, backward=scatter_sums)
    in_order = torch.cat(attend.positions).argsort()
    key = key[:, :, in_order]
    value = value[:, :, in_order]
    halves = []
    for half, at in zip(query.chunk(2, dim=2), attend.positions[comm.rank].chunk(2), strict=True):
        end = int(at[-1]) + 1
        bias = causal_lower_right(half.shape[2], end)
        halves.append(scaled_dot_product_attention(half, key[:, :, :end], value[:, :, :end], bias))
    return torch.cat(halves, dim=2)


def ulysses(query: Tensor, key: Tensor, value: Tensor, attend: BlockAttention, comm) -> Tensor:
    """Causal attention with the whole sequence and this rank's heads in between: [n, h, t / p, d].

    Rank r must have the r-th part of the tokens; it computes the r-th part of the heads. Each rank sends (p - 1) / p
    of its queries, keys, values and outputs, and as much again backward. Raises InputError when p does not divide the
    heads. `attend` isn't needed, because a plain kernel's causal mask is right here.
    """
    if query.shape[1] % comm.size or key.shape[1] % comm.size:
        raise InputError(f"{query.shape[1]} heads don't divide by {comm.size} ranks: use fewer ranks, or a ring.")
    to_heads = partial(_exchange, comm, cut=1, join=2)
    to_tokens = partial(_exchange, comm, cut=2, join=1)
    query, key, value = (both_ways(each, forward=to_heads, backward=to_tokens) for each in (query, key, value))
    out = scaled_dot_product_attention(query, key, value, is_causal=True)  # [n, h / p, t, d]
    return both_ways(out, forward=to_tokens, backward=to_heads)


def _exchange(comm, tensor: Tensor, cut: int, join: int) -> Tensor:
    """Cut a tensor along one dimension, send part r to rank r, and join what arrives along the other one."""
    going = torch.stack(tensor.detach().chunk(comm.size, cut))
    return torch.cat(list(alltoall(comm, going)), join)
