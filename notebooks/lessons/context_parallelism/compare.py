"""Compare a way of sharding attention by tokens with full attention: results, gradients, bytes, and work."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from workshop_lib.training.collectives.counting import CountingComm

from lessons.context_parallelism.blocks import BlockAttention

TOKENS = 1024
HEADS = 4
HEAD_WIDTH = 32


class Comparison(NamedTuple):
    """What one rank saw, and the largest differences on any rank, as fractions of the largest number."""

    out: float
    grad_query: float
    grad_key: float
    grad_value: float
    forward_blocks: float  # what this rank sent, in blocks: a block is the keys and values of one rank
    backward_blocks: float
    scores: int  # how many scores this rank computed per head, in both passes


def with_full_attention(way: Callable, order: Callable, comm) -> Comparison:
    """Run causal attention over a sequence of 1,024 tokens, forward and backward, in float32. All ranks call it.

    way(query, key, value, attend, comm) returns the attention of this rank's queries. `attend` is a BlockAttention,
    and comm counts bytes. order(tokens, rank, size) returns the positions of a rank's tokens.
    """
    generator = torch.Generator().manual_seed(1)
    shape = 1, HEADS, TOKENS, HEAD_WIDTH
    whole = [torch.randn(shape, generator=generator).requires_grad_() for _ in range(3)]
    query, key, value = whole
    full = scaled_dot_product_attention(query, key, value, is_causal=True)
    full_gradients = torch.autograd.grad(full.square().sum(), whole)

    counting = CountingComm(comm)
    positions = [order(TOKENS, rank, comm.size) for rank in range(comm.size)]
    here = positions[comm.rank]
    mine = [each.detach()[:, :, here].requires_grad_() for each in whole]
    attend = BlockAttention(positions, comm.rank)
    out = way(*mine, attend, counting)
    forward_bytes = counting.bytes_sent
    gradients = torch.autograd.grad(out.square().sum(), mine)

    pairs = [(out, full), *zip(gradients, full_gradients, strict=True)]
    differences = [((a - b[:, :, here]).abs().max() / b.abs().max()).item() for a, b in pairs]
    largest = [max(of_ranks) for of_ranks in zip(*comm.allgather(differences), strict=True)]
    out_apart, query_apart, key_apart, value_apart = largest
    block = 2 * mine[1].nbytes
    return Comparison(
        out=out_apart,
        grad_query=query_apart,
        grad_key=key_apart,
        grad_value=value_apart,
        forward_blocks=forward_bytes / block,
        backward_blocks=(counting.bytes_sent - forward_bytes) / block,
        scores=attend.scores,
    )
