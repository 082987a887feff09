"""Judges the exercises of 05_ddp. `accumulate`, gradient accumulation, is in this file.

Handwritten DDP is judged in judge_own_ddp.py, the converted script in judge_script.py, and the diagnoses in clinic.py.
The ranks keep one gloo process group until they end. Known mistakes are recognized from what the ranks did and from
the resulting gradients, so a check does not have to run the mistakes.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.judge import Exercise, Property, close, own_or_solution
from workshop_lib.judge.network import Batch, backward, batch, gradient_of, network
from workshop_lib.lessons.ddp.clinic import admit, diagnoses
from workshop_lib.lessons.ddp.judge_own_ddp import my_buckets, my_ddp
from workshop_lib.lessons.ddp.judge_script import own_or_finished, script
from workshop_lib.lessons.ddp.process_group import join

__all__ = ["accumulate", "admit", "diagnoses", "my_buckets", "my_ddp", "own_or_finished", "script", "written"]

written = functools.partial(own_or_solution, notebook="05_ddp")
K = 4  # micro-batches per step


def _hint_for(gradient: np.ndarray, known: Iterable[tuple[np.ndarray, str]]) -> str:
    return next((hint for like, hint in known if close(gradient, like, 1e-5)), "")


class Accumulated(NamedTuple):
    """What `accumulate` did on one rank with some micro-batches."""

    gradient: np.ndarray
    allreduces: int
    events: list[tuple[str, bool]]  # "forward" or "backward", and whether DDP was set to communicate


def observe_accumulate(comm, function: Callable) -> list[Accumulated]:
    """What `accumulate` does with K micro-batches, and with a single one."""
    return [_accumulated(function, [batch(comm.rank, at) for at in range(k)]) for k in (K, 1)]


def _accumulated(function: Callable, micro_batches: list[Batch]) -> Accumulated:
    model = DistributedDataParallel(network())
    buckets: list[int] = []
    events: list[tuple[str, bool]] = []

    def allreduce(group, bucket):
        buckets.append(bucket.index())
        return default_hooks.allreduce_hook(group, bucket)

    def note(kind: str, *_) -> None:
        events.append((kind, model.require_backward_grad_sync))

    def note_both(_module, _given, output: torch.Tensor) -> None:
        note("forward")
        output.register_hook(functools.partial(note, "backward"))

    model.register_comm_hook(dist.group.WORLD, allreduce)
    model.module.register_forward_hook(note_both)
    function(model, micro_batches, cross_entropy)
    return Accumulated(gradient_of(model.module), len(buckets), events)


_PREPARES = "but the forward prepares DDP to communicate: put both inside `no_sync`, or both outside."
UNAVERAGED_HINTS = {  # keys: whether the last forward and the last backward pass ran outside no_sync
    (True, True): "nothing was averaged, although the last ran outside `no_sync`: call `model`, not `model.module`.",
    (False, True): f"nothing was averaged. The last backward ran outside `no_sync`, {_PREPARES}",
    (False, False): "nothing was averaged: the last micro-batch must run outside `no_sync`.",
}
ADDED_HINT = "DDP averaged, and then each rank added gradients of its own: the *last* micro-batch must communicate."
ROUNDS_HINTS = {  # keys: whether all forward and all backward passes ran outside no_sync
    (True, True): "every micro-batch was averaged. Run all but the last inside `with model.no_sync():`.",
    (True, False): f"backward runs inside `no_sync`, {_PREPARES}",
    (False, False): "several micro-batches were averaged. Only the last may run outside `no_sync`.",
}
UNEQUAL_HINT = "a rank waits for another's allreduce. All ranks must enter `no_sync` for the same micro-batches."
EMPTIED_HINT = "only the last micro-batch is in them: call `zero_grad` before the loop, or leave it to the caller."


def accumulate_properties(observations: list[list[Accumulated]]) -> Iterator[Property]:
    several, single = zip(*observations, strict=True)
    first = several[0]
    size = len(several)
    hint = "no backward has run, or its gradients were emptied. For each micro-batch: forward, loss, `backward()`."
    yield Property("every rank has gradients", all(np.any(seen.gradient) for seen in several), hint)
    forwards, backwards = ([sync for kind, sync in first.events if kind == which] for which in ("forward", "backward"))
    hint = ADDED_HINT if first.allreduces else UNAVERAGED_HINTS.get((forwards[-1], backwards[-1]), "")
    same = all(np.array_equal(seen.gradient, first.gradient) for seen in several)
    yield Property("the ranks hold the same gradients", same, hint)
    mean = backward(network(), [batch(rank, at) for rank in range(size) for at in range(K)])
    last = backward(network(), [batch(rank, K - 1) for rank in range(size)])
    known = [
        (K * mean, "they are the sum over micro-batches: divide each loss by their number."),
        (mean / size, "you divided by the number of ranks, but DDP itself takes the mean over ranks."),
        (mean / K, "you divided by the number of micro-batches twice."),
        (last, EMPTIED_HINT),
        (last / K, EMPTIED_HINT),
    ]
    text = "they are those of the mean loss over all micro-batches of all ranks"
    yield Property(text, close(first.gradient, mean), _hint_for(first.gradient, known))
    hint = ROUNDS_HINTS.get((all(forwards), all(backwards)), "")
    yield Property(f"{K} micro-batches take one round of allreduces", first.allreduces == 1, hint)
    hint = "micro-batches exist because they don't fit into memory together: give each a forward of its own."
    yield Property("no forward sees more than one micro-batch", len(forwards) == K, hint)
    alternate = [kind for kind, _ in first.events] == ["forward", "backward"] * K
    hint = "several batches' activations were in memory at once. Call `backward()` before the next forward."
    yield Property("each backward comes before the next forward", alternate, hint)
    mean = backward(network(), [batch(rank, 0) for rank in range(size)])
    right = all(close(seen.gradient, mean) and seen.allreduces == 1 for seen in single)
    hint = "the first is also the last, so it must communicate. Use `len(micro_batches)` for this and for the mean."
    yield Property("also when there is only one micro-batch", right, hint)


def _wrap_once() -> None:
    """Join the process group and create a first DDP, which loads much of PyTorch, before a check's clock starts."""
    join()
    DistributedDataParallel(network())


accumulate = Exercise("accumulate", observe_accumulate, accumulate_properties, ready=_wrap_once, stuck=UNEQUAL_HINT)
