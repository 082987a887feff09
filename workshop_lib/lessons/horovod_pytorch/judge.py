"""Judges the exercise of 03_horovod_pytorch, `make_distributed`.

A check leaves Horovod as it was before, which mostly means shut down. Known mistakes are recognized from what the ranks
did, so a check does not have to run the mistakes.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from workshop_lib.judge import Edit, Exercise, Property, close
from workshop_lib.judge.network import backward, batch, gradient_of, network, weights_of

LR = 0.05
LIMIT_S = 10.0  # includes the start and shutdown of Horovod


def ready() -> None:
    """Do once what is slow on fresh ranks: imports, PyTorch's first optimizer, Horovod's first start."""
    _built(0)
    with _running():
        pass


@contextlib.contextmanager
def _running():
    """Initialize Horovod, and shut it down afterwards, because its idle thread takes processor time.

    If Horovod is already running, it stays so.
    """
    import horovod.torch as hvd  # slow to import on fresh ranks, and the notebook's own process never needs it

    was_running = hvd.is_initialized()
    if not was_running:
        hvd.init()
    try:
        yield hvd
    finally:
        if not was_running:
            hvd.shutdown()


def _built(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and optimizer that `rank` has built before the call. Each rank's weights differ."""
    model = network(seed=1 + rank)
    return model, torch.optim.SGD(model.parameters(), LR, momentum=0.9)


class MadeDistributed(NamedTuple):
    """What `make_distributed` did on one rank. Without wrapped optimizers on all ranks, the gradients are None."""

    type: str
    is_optimizer: bool
    is_wrapped: bool
    has_weights: bool  # whether the weights equal those that rank 0 had before the call
    gradient: np.ndarray | None = None
    expected_gradient: np.ndarray | None = None


def observe_distributed(comm, function: Callable) -> MadeDistributed:
    """What the weights are after the call, and the gradients that the returned optimizer averages in one step."""
    with _running() as hvd:
        model, optimizer = _built(comm.rank)
        of_rank_0, _ = _built(0)
        returned: Any = function(model, optimizer, hvd)
        seen = MadeDistributed(
            type(returned).__name__,
            isinstance(returned, torch.optim.Optimizer),
            hasattr(returned, "synchronize") and hasattr(returned, "skip_synchronize"),
            np.array_equal(weights_of(model), weights_of(of_rank_0)),
        )
        # From here on all ranks must make the same calls, or one would wait for the others.
        if comm.allreduce(int(seen.is_optimizer and seen.is_wrapped)) != comm.size:
            return seen
        model.load_state_dict(of_rank_0.state_dict())
        backward(model, [batch(comm.rank, 0)])
        returned.synchronize()
        expected_gradient = backward(of_rank_0, [batch(rank, 0) for rank in range(comm.size)])
        return seen._replace(gradient=gradient_of(model), expected_gradient=expected_gradient)


def distributed_properties(observations: list[MadeDistributed]) -> Iterator[Property]:
    types = sorted({seen.type for seen in observations if not seen.is_optimizer})
    yield Property("it returns an optimizer", not types, f"it returned {', '.join(types)}: {NO_OPTIMIZER}")
    yield Property("the optimizer is wrapped by Horovod", all(seen.is_wrapped for seen in observations), PLAIN)
    yield Property("all ranks hold rank 0's weights", all(seen.has_weights for seen in observations), NOT_SENT)
    right = all(close(seen.gradient, seen.expected_gradient) for seen in observations)
    yield Property("its gradients are averaged over the ranks", right, NO_MEAN)


NO_OPTIMIZER = "return what `hvd.DistributedOptimizer` gives you."
PLAIN = f"a plain optimizer averages nothing, so each rank would train a network of its own. {NO_OPTIMIZER}"
NOT_SENT = (
    "a rank has other weights. Averaging gradients keeps equal weights equal, but it doesn't make them equal. Send all "
    "of rank 0's first: `hvd.broadcast_parameters(model.state_dict(), root_rank=0)`."
)
NO_MEAN = "they aren't the mean, as when they are summed or compressed: leave `op` and `compression` at their defaults."
SEND = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
WRAPPED = "hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())"
make_distributed = Exercise(
    "make_distributed",
    observe_distributed,
    distributed_properties,
    notebook="03_horovod_pytorch",
    edits=[
        Edit(NO_OPTIMIZER, (f"return {WRAPPED}", WRAPPED)),
        Edit(PLAIN, (f"return {WRAPPED}", f"{WRAPPED}\n    return optimizer")),
        Edit(NOT_SENT, (SEND, "pass")),
        Edit(NOT_SENT, ("root_rank=0", "root_rank=hvd.size() - 1")),
        Edit(NO_MEAN, (WRAPPED, f"{WRAPPED[:-1]}, op=hvd.Sum)")),
    ],
    ready=ready,
    timeout_s=LIMIT_S,
    stuck="a rank waits in a collective that another skips: all ranks must make the same calls, even rank 0.",
)
