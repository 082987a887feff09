"""Rank side of the exercises in 06_deepspeed_zero: a few steps with the learner's class, on a small network
in float64, whose number of weights is odd, so that it has to be padded.
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.comm.counting import CountingComm

SAMPLES = 5  # of each rank, in each step
STEPS = 3
LR = 0.1
CASES = [(n, ranks, stage) for n, ranks in ((1_000, 2), (64, 8), (7_000, 1)) for stage in range(4)]


def _network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def _optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters), lr=LR, momentum=0.9)


def _samples(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs float64 [SAMPLES, 5] and labels int64 [SAMPLES]."""
    random = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(SAMPLES, 5, generator=random, dtype=torch.float64) * (1 + rank)
    return inputs, torch.randint(3, (SAMPLES,), generator=random)


def _flat(tensors) -> np.ndarray:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).numpy().copy()


def _backward(model: nn.Module, ranks, step: int) -> None:
    """The gradient of the mean loss over these ranks' samples."""
    inputs, labels = (torch.cat(column) for column in zip(*(_samples(r, step) for r in ranks), strict=True))
    model.zero_grad()
    cross_entropy(model(inputs), labels).backward()


def _alone(size: int) -> list[np.ndarray]:
    """The weights after each step of one process with the global batch."""
    model = _network()
    optimizer, weights = _optimizer(model.parameters()), []
    for step in range(STEPS):
        _backward(model, range(size), step)
        optimizer.step()
        weights.append(_flat(model.parameters()))
    return weights


def _gradient(ranks) -> np.ndarray:
    model = _network()
    _backward(model, ranks, 0)
    return _flat(p.grad for p in model.parameters())


def Zero1(comm, make) -> dict:
    """What a class with one flat buffer does; see `_facts`."""
    return _facts(comm, make, [sum(p.numel() for p in _network().parameters())])


def Zero2(comm, make) -> dict:
    """What a class with a buffer for each parameter does; see `_facts`."""
    return _facts(comm, make, [p.numel() for p in _network().parameters()])


def _facts(comm, make, buckets: list[int]) -> dict:
    """Weights after each step, bytes sent, and bytes of gradients and optimizer state that this rank holds.

    buckets: the number of weights in each buffer; a rank owns a part of every buffer, padded.
    """
    model, counting = _network(), CountingComm(comm)
    start, item = _flat(model.parameters()), 8
    zero, held, weights = None, [], []

    def held_bytes() -> int:
        owned = [] if zero is None else [p for group in zero.optimizer.param_groups for p in group["params"]]
        everything = {id(p): p for p in [*model.parameters(), *owned]}
        return sum(p.grad.nbytes for p in everything.values() if p.grad is not None)

    for parameter in model.parameters():  # before the class registers its own: these are called first
        parameter.register_post_accumulate_grad_hook(lambda _: held.append(held_bytes()))
    zero = make(model, counting, _optimizer)
    held_after, sent_in_backward, before = [], 0, counting.bytes_sent
    for step in range(STEPS):
        for group in zero.optimizer.param_groups:
            for p in group["params"]:
                p.grad = None  # what the step before has left is not held against this one
        sent = counting.bytes_sent
        _backward(model, [comm.rank], step)
        held_after.append(held_bytes())
        sent_in_backward += counting.bytes_sent - sent
        zero.step()
        weights.append(_flat(model.parameters()))
    states = [value for state in zero.optimizer.state.values() for value in state.values()]
    padded = [-(-n // comm.size) * comm.size for n in buckets]
    return {
        "size": comm.size,
        "start": start,
        "weights": weights,
        "expected": _alone(comm.size),
        "implied": (start - weights[0]) / LR,  # the gradient that the first step went along
        "mean": _gradient(range(comm.size)),
        "own": _gradient([comm.rank]),
        "owner": np.concatenate(
            [np.arange(n) // (whole // comm.size) for n, whole in zip(buckets, padded, strict=True)]
        ),
        "state": sum(value.nbytes for value in states if isinstance(value, torch.Tensor)),
        "share": item * sum(padded) // comm.size,
        "whole": item * sum(padded),
        "largest": item * max(buckets),
        "held": held_after[0],
        "held_most": max(held),
        "sent": (counting.bytes_sent - before) / STEPS,
        "sent_in_backward": sent_in_backward / STEPS,
    }


def bytes_per_rank(comm, function) -> dict:
    """{(parameters, ranks, stage): what the function returns}."""
    return {case: function(*case) for case in CASES}
