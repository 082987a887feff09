"""Attention in blocks: the queries of one rank over the keys and values of one rank at a time, and its gradients.

11c_context_parallelism builds ring attention from these. In shapes, n is the number of sequences, h of heads, t of the
tokens of a block, and d of the numbers per head. A partial result is a tuple (top, total, out):

    top    [n, h, t, 1]   the largest score of each query so far
    total  [n, h, t, 1]   the sum of exp(score - top) over the keys so far
    out    [n, h, t, d]   the sum of exp(score - top) * value over the same keys, so out / total is the attention

All of it is plain PyTorch, which is written to be read. A flash kernel does the same without storing the scores.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workshop_lib.training.data.shard import parts

Partial = tuple[Tensor, Tensor, Tensor]


def contiguous(tokens: int, rank: int, size: int) -> Tensor:
    """The positions of a rank's tokens in the sequence if rank r has the r-th part: [t]."""
    return torch.arange(tokens)[parts(tokens, size)[rank]]


@dataclass
class BlockGradients:
    """What the backward pass knows about a rank's queries, whichever block of keys it looks at."""

    output: Tensor  # [n, h, t, d], the gradient of the attention's output
    weighted: Tensor  # [n, h, t, 1], the output times its gradient, summed over d
    logsumexp: Tensor  # [n, h, t, 1], of all scores of a query


class BlockAttention:
    """Attention of this rank's queries over the keys and values of one rank, of which only the needed part is computed.

    positions[r]: where the tokens of rank r stand in the sequence, in ascending order. A query sees its own
    token and those before it. Keys after the last query and queries before the first key are left out, and what is left
    is computed whole and masked.
    scores: how many scores per head this rank has computed so far.
    """

    def __init__(self, positions: list[Tensor], rank: int):
        self.positions = [each.contiguous() for each in positions]
        self.rank = rank
        self.scores = 0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, source: int) -> Partial:
        """The partial result (top, total, out) of these queries over the keys and values of rank `source`."""
        top = query.new_full((*query.shape[:3], 1), -math.inf)
        total = torch.zeros_like(top)
        out = torch.zeros_like(query)
        queries, keys = self.needed(source)
        if self._count(queries, keys):
            scores = self._scores(query, key, source, queries, keys)
            top[:, :, queries] = scores.amax(dim=3, keepdim=True)
            weights = (scores - top[:, :, queries]).exp()
            total[:, :, queries] = weights.sum(dim=3, keepdim=True)
            out[:, :, queries] = weights @ value[:, :, keys]
        return top, total, out

    def backward(
        self, query: Tensor, key: Tensor, value: Tensor, source: int, given: BlockGradients
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of query, key and value from what these queries did with the keys and values of a rank."""
        grad_query, grad_key, grad_value = (torch.zeros_like(each) for each in (query, key, value))
        queries, keys = self.needed(source)
        if self._count(queries, keys):
            scores = self._scores(query, key, source, queries, keys)
            weights = (scores - given.logsumexp[:, :, queries]).exp()  # the softmax, computed again
            grad = given.output[:, :, queries]
            grad_weights = grad @ value[:, :, keys].transpose(2, 3)
            grad_scores = weights * (grad_weights - given.weighted[:, :, queries]) / math.sqrt(query.shape[3])
            grad_query[:, :, queries] = grad_scores @ key[:, :, keys]
            grad_key[:, :, keys] = grad_scores.transpose(2, 3) @ query[:, :, queries]
            grad_value[:, :, keys] = weights.transpose(2, 3) @ grad
        return grad_query, grad_key, grad_value

    def needed(self, source: int) -> tuple[slice, slice]:
        """Which of this rank's queries see any key of rank `source`, and which of those keys any query sees."""
        mine = self.positions[self.rank]
        theirs = self.positions[source]
        first_query = int(torch.searchsorted(mine, theirs[0]))
        keys = int(torch.searchsorted(theirs, mine[-1], right=True))
        return slice(first_query, len(mine)), slice(0, keys)

    def _count(self, queries: slice, keys: slice) -> int:
        """Add a block's scores to `scores`, and return how many there are."""
        block = (queries.stop - queries.start) * (keys.stop - keys.start)
        self.scores += block
        return block

    def _scores(self, query: Tensor, key: Tensor, source: int, queries: slice, keys: slice) -> Tensor:
        """The scores of these queries and keys, with minus infinity where a query must not see a key."""
        scores = query[:, :, queries] @ key[:, :, keys].transpose(2, 3) / math.sqrt(query.shape[3])
        later = self.positions[source][keys] > self.positions[self.rank][queries, None]
        return scores.masked_fill(later, -math.inf)
