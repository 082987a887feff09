"""Compare experts on many ranks with one process that computes every expert for every token."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from mpi4py import MPI
from torch import Tensor
from torch.nn.functional import gelu

from workshop_lib.training.collectives.counting import CountingComm
from workshop_lib.training.data.shard import parts

from lessons.experts.layer import MixtureOfExperts, capacity_of

EXPERTS = 8
WIDTH = 64
TOKENS = 256  # of each rank


class AgainstOneProcess(NamedTuple):
    """Bytes that one rank sent, and the largest differences on any rank, as fractions of the largest number."""

    outputs: float
    grad_tokens: float
    grad_router: float
    grad_experts: float
    forward_bytes: int
    backward_bytes: int
    formula_bytes: float  # for each of the two passes
    dropped: float  # the share of choices that found no slot, on all ranks


def with_one_process(route: Callable, through: Callable, k: int, factor: float, comm) -> AgainstOneProcess:
    """Run experts over random tokens, forward and backward, in float32. All ranks call it.

    route and through are the learner's `route` and `through_experts`. Each token goes to k of 8 experts, whose capacity
    is `factor` times an even load.
    """
    counting = CountingComm(comm)

    def experts_on(ranks) -> MixtureOfExperts:
        torch.manual_seed(1)
        return MixtureOfExperts(WIDTH, 4 * WIDTH, EXPERTS, k, factor, ranks, route, through)

    layer = experts_on(counting)
    whole = experts_on(MPI.COMM_SELF)
    tokens = torch.randn(comm.size, TOKENS, WIDTH, generator=torch.Generator().manual_seed(2))

    mine = tokens[comm.rank].clone().requires_grad_()
    outputs = layer(mine)
    forward_bytes = counting.bytes_sent
    outputs.square().sum().backward()
    backward_bytes = counting.bytes_sent - forward_bytes
    grad_router = gradient(layer.router.weight).clone()
    comm.Allreduce(MPI.IN_PLACE, grad_router.numpy())

    every = tokens.clone().requires_grad_()
    expected = torch.stack([dense(whole, each) for each in every])
    expected.square().sum().backward()
    here = parts(EXPERTS, comm.size)[comm.rank]
    pairs = [
        (outputs, expected[comm.rank]),
        (gradient(mine), gradient(every)[comm.rank]),
        (grad_router, gradient(whole.router.weight)),
        (gradient(layer.experts.up), gradient(whole.experts.up)[here]),
        (gradient(layer.experts.down), gradient(whole.experts.down)[here]),
    ]
    of_rank = [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs]
    apart = [max(of_ranks) for of_ranks in zip(*comm.allgather(of_rank), strict=True)]
    buffer_bytes = EXPERTS * layer.capacity * WIDTH * 4
    return AgainstOneProcess(
        outputs=apart[0],
        grad_tokens=apart[1],
        grad_router=apart[2],
        grad_experts=max(apart[3:]),
        forward_bytes=forward_bytes,
        backward_bytes=backward_bytes,
        formula_bytes=2 * (comm.size - 1) / comm.size * buffer_bytes,
        dropped=comm.allreduce(layer.dropped) / comm.size,
    )


def gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def dense(layer: MixtureOfExperts, tokens: Tensor) -> Tensor:
    """What a layer of experts on one process computes for a rank's tokens [t, w], without moving any of them."""
    probabilities = layer.router(tokens).softmax(dim=1)
    chosen, gates, slots = layer.route(probabilities, layer.k)
    kept = slots < capacity_of(len(tokens), layer.k, EXPERTS, layer.factor)
    weights = torch.zeros_like(probabilities).scatter(1, chosen, gates * kept)  # [t, E], 0 for most
    outputs = torch.zeros_like(tokens)
    for expert, (up, down) in enumerate(zip(layer.experts.up, layer.experts.down, strict=True)):
        outputs = outputs + weights[:, expert, None] * (gelu(tokens @ up) @ down)
    return outputs
