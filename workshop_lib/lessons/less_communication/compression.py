"""Gradients in fewer bytes: hooks for DistributedDataParallel, and what counts what they send.

A hook is called with each full bucket of gradients, and returns a future of their mean over the ranks.
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
    """The k entries of gradient + residual [n] of largest magnitude: values [k], their places [k], and what is left.

    Error feedback (Seide et al. 2014, Interspeech; Stich et al. 2018, arXiv:1809.07599): what is not sent becomes the
    residual [n] of the next gradient. So sent + residual = gradient + old residual: nothing is lost, some is late.
    """
    total = gradient + residual
    places = np.argpartition(np.abs(total), -k)[-k:]
    kept = total.copy()
    kept[places] = 0
    return total[places], places, kept


def forgetful(gradient: np.ndarray, residual: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `largest`, but what is not sent is lost."""
    values, places, kept = largest(gradient, residual, k)
    return values, places, np.zeros_like(kept)


class TopK:
    """Sends a share of each bucket's entries, as `compress` chooses them, and keeps the residual that it leaves.

    Ranks choose different entries, which an allreduce cannot add: each gathers the values and places of all,
    8 bytes per entry, so the time grows with the number of ranks. For gradients on the CPU.
    Raises InputError for a share that is not above 0 and up to 1.
    """

    def __init__(self, share: float, compress: Compress = largest):
        if not 0 < share <= 1:
            raise InputError(f"share {share!r}: give the part of the entries to send, above 0 and up to 1")
        self.share, self.compress = share, compress
        # By parameter and not by bucket: after its first step DDP makes up its buckets anew.
        self.residuals: dict[torch.Tensor, np.ndarray] = {}

    def hook(self, _, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradient, parameters = bucket.buffer(), bucket.parameters()
        old = [self.residuals.get(p, np.zeros(p.numel(), np.float32)) for p in parameters]
        k = max(1, round(self.share * len(gradient)))
        values, places, residual = self.compress(gradient.numpy(), np.concatenate(old), k)
        ends = np.cumsum([p.numel() for p in parameters])[:-1]
        self.residuals |= dict(zip(parameters, np.split(np.asarray(residual, np.float32), ends), strict=True))
        # One message: the places travel as the bits of 32-bit numbers.
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
    """As default_hooks.bf16_compress_hook, which DDP refuses without a GPU: the mean, summed in bf16."""
    half = (bucket.buffer() / dist.get_world_size()).bfloat16()
    future = dist.all_reduce(half, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].float())


def power_sgd(model: DistributedDataParallel, rank: int = 2, exact_steps: int = 10) -> None:
    """PyTorch's PowerSGD (Vogels et al. 2019, arXiv:1905.13727) on this model: each large matrix travels as
    two thin ones of `rank` columns, with error feedback. The first exact_steps steps are sent whole."""
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=exact_steps, min_compression_rate=1
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


Register = Callable[[DistributedDataParallel], None]  # a hook on this model


def registered(hook: Callable) -> Register:
    """What registers this hook, which keeps no state of DDP's."""
    return lambda model: model.register_comm_hook(None, hook)


def ways() -> dict[str, Register]:
    """Ways to send the gradients of every step, by name: new ones, because a hook keeps residuals of its own model."""
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
def counted() -> Iterator[dict]:
    """{"bytes", "messages"} that this rank gives to all_reduce and all_gather of torch.distributed inside it.

    What the collective makes of them is its own matter: an allreduce of n bytes sends up to 2 n, an allgather
    (p - 1) n. DDP's averaging without a hook does not come by here: register default_hooks.allreduce_hook.
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
