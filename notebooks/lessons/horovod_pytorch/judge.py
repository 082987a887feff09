"""Judges the exercise of 03_horovod_pytorch, `make_distributed`.

A check shuts Horovod down in the end.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from workshop_lib.exercises.network import backward, batch, gradient_of, network, weights_of
from workshop_lib.exercises.play import Edit, played

NOTEBOOK = "03_horovod_pytorch"
GROUP_HINT = "Is a number of ranks written into your code? Take it from `hvd.size()`."
LR = 0.05
LIMIT_S = 10.0  # includes the start and shutdown of Horovod


def ready() -> None:
    """Do once what is slow on fresh ranks: imports, PyTorch's first optimizer, Horovod's first start."""
    built(0)
    with running():
        pass


@contextlib.contextmanager
def running(comm=None):
    """Initialize Horovod, and shut it down afterwards, because its idle thread takes processor time."""
    import horovod.torch as hvd  # slow to import on fresh ranks, and the notebook's own process never needs it

    hvd.init(comm=comm)
    try:
        yield hvd
    finally:
        hvd.shutdown()


def built(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and optimizer that `rank` has built before the call. Each rank's weights differ."""
    model = network(seed=1 + rank)
    return model, torch.optim.SGD(model.parameters(), LR, momentum=0.9)


def play_distributed(make_distributed: Callable, comm) -> Iterator[tuple]:
    """Look at the weights after the call, and at the gradients that the returned optimizer averages in one step."""
    gradient = None
    with running(comm) as hvd:
        model, optimizer = built(comm.rank)
        returned: Any = make_distributed(model, optimizer, hvd)
        weights = weights_of(model)
        is_wrapped = hasattr(returned, "synchronize") and hasattr(returned, "skip_synchronize")
        # From here on all ranks must make the same calls, or one would wait for the others.
        if all(comm.allgather(is_wrapped)):
            model.load_state_dict(built(0)[0].state_dict())
            backward(model, [batch(comm.rank, 0)])
            returned.synchronize()
            gradient = gradient_of(model)
    yield "the optimizer is wrapped by Horovod", is_wrapped
    yield "all ranks hold rank 0's weights", weights, "after the call", NOT_SENT
    yield "its gradients are averaged over the ranks", gradient


NOT_SENT = "Send all of rank 0's first: `hvd.broadcast_parameters(model.state_dict(), root_rank=0)`."
SEND = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
WRAPPED = "hvd.DistributedOptimizer(optimizer, named_parameters=names)"
make_distributed = played(
    "make_distributed",
    NOTEBOOK,
    play_distributed,
    [
        Edit(
            "a plain optimizer averages nothing, so each rank would train a network of its own. Return what "
            "`hvd.DistributedOptimizer` gives you.",
            (f"return {WRAPPED}", f"{WRAPPED}\n    return optimizer"),
        ),
        Edit(
            "a rank still has its own weights. Averaging gradients keeps equal weights equal, but it doesn't make them "
            f"equal. {NOT_SENT}",
            (SEND, "pass"),
        ),
        Edit(
            "they're the sum over the ranks: leave `op` at its default, the mean.",
            (WRAPPED, f"{WRAPPED[:-1]}, op=hvd.Sum)"),
        ),
    ],
    returns="what `hvd.DistributedOptimizer` gives you",
    rounding=1e-9,  # all numbers are float64
    ready=ready,
    timeout_s=LIMIT_S,
    group_hint=GROUP_HINT,
    stuck="a rank waits in a collective that another skips: all ranks must make the same calls, even rank 0.",
    unknown="leave `op` and `compression` of `hvd.DistributedOptimizer` at their defaults.",
)
