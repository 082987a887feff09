"""An MLP made of experts that live on different ranks (Shazeer et al. 2017, arXiv:1701.06538).

11d_experts builds it from these pieces, in which two functions are the learner's: `route`, which picks the experts of
each token, and `through_experts`, which takes the tokens there and back. In shapes, t is the number of this rank's
tokens, w of numbers per token, E of all experts, p of ranks, and k of experts per token. C is the capacity: how many
tokens of one rank an expert accepts. Rank r has the r-th part of the experts.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from workshop_lib.training.data.shard import parts

from lessons.model_parallelism.tensors import alltoall, both_ways

Routing = tuple[Tensor, Tensor, Tensor]  # chosen, gates and slots, each [t, k]


def capacity_of(tokens: int, k: int, experts: int, factor: float) -> int:
    """How many tokens of one rank each expert accepts. With a factor of 1, an even load fits exactly."""
    return math.ceil(factor * k * tokens / experts)


def exchange(buffer: Tensor, comm) -> Tensor:
    """Send buffer[r] to rank r, and return what arrives, by the rank that sent it: [p, …]. All ranks call it.

    It's an all-to-all. Each rank sends p - 1 messages, in total (p - 1) / p of the bytes of `buffer`, and as many again
    in the backward pass, where the gradients travel the same way back.
    """
    trade = partial(alltoall, comm)
    return both_ways(buffer, forward=trade, backward=trade)


class BatchedExperts(nn.Module):
    """The experts of one rank, which compute together: one batched matrix product per layer, whatever their number.

    comm: only its rank and size matter; the size divides the experts. All of them start with the same weights on any
    number of ranks.
    """

    def __init__(self, width: int, hidden: int, experts: int, comm):
        super().__init__()
        up = torch.empty(experts, width, hidden)
        down = torch.empty(experts, hidden, width)
        for weights in (*up, *down):
            nn.init.xavier_uniform_(weights)
        mine = parts(experts, comm.size)[comm.rank]
        self.up = nn.Parameter(up[mine].clone())
        self.down = nn.Parameter(down[mine].clone())

    def forward(self, arrived: Tensor) -> Tensor:  # [p, E / p, C, w]: by the rank that sent them
        by_expert = arrived.transpose(0, 1).flatten(1, 2)  # [E / p, p C, w]
        results = gelu(by_expert @ self.up) @ self.down  # `@` multiplies one pair of matrices per expert
        return results.unflatten(1, (arrived.shape[0], -1)).transpose(0, 1)


class MixtureOfExperts(nn.Module):
    """Takes the place of a block's MLP: a router sends each token to k of all ranks' experts.

    After a forward pass, `probabilities` [t, E], `routing` and `capacity` say what the router did.
    """

    def __init__(
        self, width: int, hidden: int, experts: int, k: int, factor: float, comm, route: Callable, through: Callable
    ):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = BatchedExperts(width, hidden, experts, comm)
        self.k = k
        self.factor = factor
        self.comm = comm
        self.route = route
        self.through = through
        self.capacity = 0
        self.probabilities = torch.empty(0)
        self.routing: Routing = (torch.empty(0), torch.empty(0), torch.empty(0))

    @property
    def load(self) -> Tensor:
        """How many of this rank's choices in the last forward pass went to each expert, dropped or not: [E]."""
        return self.routing[0].flatten().bincount(minlength=self.router.out_features)

    @property
    def dropped(self) -> float:
        """The share of this rank's choices in the last forward pass that found no slot."""
        return (self.routing[2] >= self.capacity).float().mean().item()

    def forward(self, tokens: Tensor) -> Tensor:  # [t, w]
        experts = self.router.out_features
        self.probabilities = self.router(tokens).softmax(dim=1)
        self.capacity = capacity_of(len(tokens), self.k, experts, self.factor)
        self.routing = self.route(self.probabilities, self.k)
        buffer = tokens.new_zeros(self.comm.size, experts // self.comm.size, self.capacity, tokens.shape[1])
        return self.through(tokens, self.routing, buffer, self.experts, partial(exchange, comm=self.comm))
