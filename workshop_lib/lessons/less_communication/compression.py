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

from workshop_lib.errors import InputError

Compress = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray, np.ndarray]]


def largest(gradient: np.ndarray, residual: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values [k] and indices [k] of the k largest magnitudes in gradient + residual, and the new residual [n].

    gradient, residual: [n]. With error feedback (Seide et al. 2014, Interspeech; Stich et al. 2018, arXiv:1809.07599),
    what is not sent becomes the residual of the next gradient. So sent + new residual = gradient + old residual:
    nothing is lost, some of it is only sent later.
    """
    total = gradient + residual
    places = np.argpartition(np.abs(total), -k)[-k:]
    kept = total.copy()
    kept[places] = 0
    return total[places], places, kept


def forgetful(gradient: np.ndarray, residual: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Do the same as `largest`, but lose what is not sent: the new residual is zero."""
    values, places, kept = largest(gradient, residual, k)
    return values, places, np.zeros_like(kept)


class TopK:
    """A hook that sends a share of each bucket's entries, chosen by `compress`, and keeps the residual.

    Ranks choose different entries, and an allreduce cannot add these up. So each rank gathers the values and indices of
    all ranks, 8 bytes per entry, and the time grows with the number of ranks. The gradients must be on the CPU.
    Raises InputError for a share that is not above 0 and up to 1.
    """

    def __init__(self, share: float, compress: Compress = largest):
        if not 0 < share <= 1:
            raise InputError(f"share {share!r}: give the part of the entries to send, above 0 and up to 1")
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


def bf16_hook(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket in bf16, as default_hooks.bf16_compress_hook does, which DDP refuses without a GPU."""
    half = (bucket.buffer() / dist.get_world_size()).bfloat16()
    future = dist.all_reduce(half, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].float())


def power_sgd(model: DistributedDataParallel, rank: int = 2, exact_steps: int = 10) -> None:
    """Register PyTorch's PowerSGD (Vogels et al. 2019, arXiv:1905.13727) on this model.

    Each large matrix is sent as two thin matrices of `rank` columns, with error feedback. In the first exact_steps
    steps, gradients are sent whole.
    """
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=exact_steps, min_compression_rate=1
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
        "bf16": registered(bf16_hook),
        "PowerSGD, rank 2": power_sgd,
        "top 1 %": registered(TopK(0.01).hook),
        "top 1 %, no feedback": registered(TopK(0.01, forgetful).hook),
        "top 0.1 %": registered(TopK(0.001).hook),
    }


@contextlib.contextmanager
def count_messages() -> Iterator[dict]:
    """Count what this rank passes to torch.distributed's all_reduce and all_gather inside the block.

    Yields {"bytes", "messages"}. A collective may send more than it is given: an allreduce of n bytes sends up to 2 n,
    an allgather (p - 1) n. DDP's averaging without a hook is not counted: register default_hooks.allreduce_hook.
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
