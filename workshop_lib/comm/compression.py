"""Gradients in fewer bytes: hooks for DistributedDataParallel, and what counts what they send.

A hook is called with each full bucket of gradients, and returns a future of their mean over the ranks.
"""

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.errors import InputError


def largest(vector: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k entries of `vector` [n] of largest magnitude: values [k] and their places, int64 [k]."""
    places = vector.abs().topk(k).indices
    return vector[places], places


class TopK:
    """Sends a share of each bucket's entries, the largest, and keeps the rest for later steps.

    Error feedback (Seide et al. 2014, Interspeech; Stich et al. 2018, arXiv:1809.07599): what is not sent is
    added to the next gradient, so sent + residual = gradient + old residual: nothing is lost, some of it is
    late. feedback=False drops it instead.
    Ranks choose different entries, which an allreduce cannot add: each gathers the values and places of all,
    8 bytes per entry, so the time grows with the number of ranks.
    Raises InputError for a share that is not above 0 and up to 1.
    """

    def __init__(self, share: float, feedback: bool = True):
        if not 0 < share <= 1:
            raise InputError(f"share {share!r}: give the part of the entries to send, above 0 and up to 1")
        self.share, self.feedback = share, feedback
        # By parameter and not by bucket: after its first step DDP makes up its buckets anew.
        self.residuals: dict[torch.Tensor, torch.Tensor] = {}

    def hook(self, _, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradient, parameters = bucket.buffer(), bucket.parameters()
        if self.residuals:
            gradient = gradient + torch.cat([self.residuals[p] for p in parameters])
        values, places = largest(gradient, max(1, round(self.share * len(gradient))))
        if self.feedback:
            residual = gradient.index_fill(0, places, 0)
            self.residuals |= dict(zip(parameters, residual.split([p.numel() for p in parameters]), strict=True))
        # One message: the places travel as the bits of 32-bit numbers.
        message = torch.cat([values, places.int().view(torch.float32)])
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


WAYS: dict[str, Callable[[DistributedDataParallel], None]] = {
    "fp32": lambda model: model.register_comm_hook(None, default_hooks.allreduce_hook),
    "fp16": lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "bf16": lambda model: model.register_comm_hook(None, bf16_hook),
    "PowerSGD, rank 2": power_sgd,
    "top 1 %": lambda model: model.register_comm_hook(None, TopK(0.01).hook),
    "top 1 %, no feedback": lambda model: model.register_comm_hook(None, TopK(0.01, feedback=False).hook),
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
