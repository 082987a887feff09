"""Gradient compression for 07c_less_communication: hooks for DistributedDataParallel, and a counter of what they send.

DDP calls a hook with each full bucket of gradients, and the hook returns a future of their mean over the ranks.
"""

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.exercises.solutions import Solution

SOLUTION = Solution("07c_less_communication", "compress")
Compress = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray, np.ndarray]]


def forgetful(gradient: np.ndarray, residual: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Do the same as the notebook's solution, but lose what is not sent: the new residual is zero."""
    values, places, kept = SOLUTION.load()(gradient, residual, k)
    return values, places, np.zeros_like(kept)


class TopK:
    """A hook that sends a share of each bucket's entries, chosen by `compress`, and keeps the residual.

    Each rank gathers the values and indices of all ranks, 8 bytes per entry. The gradients must be on the CPU.
    """

    def __init__(self, share: float, compress: Compress):
        self.share = share
        self.compress = compress
        # Residuals are kept per parameter, not per bucket, because DDP rebuilds its buckets after the first step.
        self.residuals: dict[torch.Tensor, np.ndarray] = {}

    def hook(self, _, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradient = bucket.buffer()
        parameters = bucket.parameters()
        old = [self.residuals.get(p, np.zeros(p.numel(), np.float32)) for p in parameters]
        k = max(1, round(self.share * len(gradient)))
        values, places, residual = self.compress(gradient.numpy(), np.concatenate(old), k)
        ends = np.cumsum([p.numel() for p in parameters])[:-1]
        self.residuals |= dict(zip(parameters, np.split(np.asarray(residual, np.float32), ends), strict=True))
        # One message holds values and indices: the indices travel as the bits of 32-bit floats.
        both = np.asarray(values, np.float32), np.asarray(places, np.int32).view(np.float32)
        message = torch.from_numpy(np.concatenate(both))
        gathered = [torch.empty_like(message) for _ in range(dist.get_world_size())]
        future = dist.all_gather(gathered, message, async_op=True).get_future()

        def mean(_) -> torch.Tensor:
            total = torch.zeros_like(gradient)
            for of_rank in gathered:
                values, places = of_rank.chunk(2)
                total.index_add_(0, places.view(torch.int32).long(), values)
            return total / len(gathered)

        return future.then(mean)


def power_sgd(model: DistributedDataParallel) -> None:
    """Register PyTorch's PowerSGD (Vogels et al. 2019, arXiv:1905.13727) on this model.

    Each large matrix is sent as two thin matrices of two columns, with error feedback, after ten steps with whole ones.
    """
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=10, min_compression_rate=1
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


Register = Callable[[DistributedDataParallel], None]  # registers a hook on a model


def registered(hook: Callable) -> Register:
    """Return a function that registers this hook on a model. DDP passes the hook no state."""
    return lambda model: model.register_comm_hook(None, hook)


def ways() -> dict[str, Register]:
    """Return ways to send each step's gradients, by name. Hooks are new, as each keeps its own model's residuals."""
    return {
        "fp32": registered(default_hooks.allreduce_hook),
        "fp16": registered(default_hooks.fp16_compress_hook),
        "PowerSGD, rank 2": power_sgd,
        "top 1 %": registered(TopK(0.01, SOLUTION.load()).hook),
        "top 1 %, no feedback": registered(TopK(0.01, forgetful).hook),
        "top 0.1 %": registered(TopK(0.001, SOLUTION.load()).hook),
    }


@contextlib.contextmanager
def count_messages() -> Iterator[dict]:
    """Count what this rank passes to torch.distributed's all_reduce and all_gather inside the block.

    Yields {"bytes", "messages"}. DDP's averaging without a hook is not counted: register default_hooks.allreduce_hook.
    """
    sent = {"bytes": 0, "messages": 0}

    def counting(collective: Callable, sent_argument: int) -> Callable:
        def call(*args, **kwargs):
            sent["bytes"] += args[sent_argument].nbytes
            sent["messages"] += 1
            return collective(*args, **kwargs)

        return call

    counted_calls = {"all_reduce": counting(dist.all_reduce, 0), "all_gather": counting(dist.all_gather, 1)}
    with mock.patch.dict(vars(dist), counted_calls):
        yield sent
