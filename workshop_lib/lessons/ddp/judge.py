"""Judges the exercises of 05_ddp. `accumulate`, gradient accumulation, and `shard_of`, a sampler, are in this file.

Handwritten DDP is judged in judge_own_ddp.py, the converted script in judge_script.py, and the diagnoses in clinic.py.
The ranks keep one gloo process group until they end. Known mistakes are recognized from what the ranks did and from
the resulting gradients, so a check does not have to run the mistakes.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.judge import ENDLESS_HINT, Exercise, Property, close, shown
from workshop_lib.judge.network import Batch, backward, batch, gradient_of, network
from workshop_lib.lessons.ddp.clinic import admit, diagnoses
from workshop_lib.lessons.ddp.judge_own_ddp import join, my_buckets, my_ddp
from workshop_lib.lessons.ddp.judge_script import own_or_finished, script

__all__ = ["accumulate", "admit", "diagnoses", "join", "own_or_finished", "my_buckets", "my_ddp", "script", "shard_of"]

K = 4  # micro-batches per step
SHARED = [(n, size) for n in (10, 103, 8, 1) for size in (1, 2, 3, 4)]  # (samples, ranks) of each case
EPOCHS = (1, 2, 3)


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


def observe_shard_of(comm, function: Callable) -> list[list]:
    """What `shard_of` returns for each case of SHARED, by epoch and rank; every call is made twice."""
    return [
        [[[_plain(function(n, epoch, rank, size)) for rank in range(size)] for epoch in EPOCHS] for n, size in SHARED]
        for _ in range(2)
    ]


def _plain(returned) -> list[int] | str:
    """The whole numbers of a list, array or tensor, as a list of ints; anything else as text."""
    try:
        return [operator.index(i) for i in returned]
    except TypeError:
        return shown(returned)


def shard_properties(observations: list[list[list]]) -> Iterator[Property]:
    answers = [answer for seen in observations for answer in seen]
    epochs_of = dict(zip(SHARED, answers[0], strict=True))
    shared_out = [(n, parts) for (n, _), epochs in epochs_of.items() for parts in epochs]
    other = [part for _, parts in shared_out for part in parts if isinstance(part, str)]
    hint = f"in one case it returned {other[0]}." if other else ""
    yield Property("it returns a list of whole numbers", not other, hint)
    agree = all(answer == answers[0] for answer in answers)
    hint = "all ranks must draw the same order, with a generator of their own: `np.random.default_rng(seed)`."
    yield Property("the same question has the same answer, on all ranks", agree, hint)
    hints = [hint for n, parts in shared_out if (hint := _flaw_hint(n, parts))]
    yield Property("each sample is taken once in each epoch", not hints, "".join(hints[:1]))
    even = all(max(map(len, parts)) - min(map(len, parts)) <= 1 for _, parts in shared_out)
    hint = "one rank gets several samples more than another, and all wait for it: spread what is left over."
    yield Property("no rank gets two samples more than another", even, hint)
    orders = [parts[0] for parts in epochs_of[103, 1]]
    hint = "they come in the files' order, 0, 1, 2, …: shuffle it, or each batch sees neighbors."
    yield Property("the samples are shuffled", orders[0] != list(range(103)), hint)
    hint = "all epochs have the same order, as if you forget `set_epoch`: the seed must depend on the epoch."
    yield Property("each epoch has a different order", len(set(map(tuple, orders))) == len(EPOCHS), hint)
    changes = len({frozenset(parts[0]) for parts in epochs_of[103, 2]}) == len(EPOCHS)
    hint = "a rank sees the same samples in all epochs: shuffle first, then share out."
    yield Property("a rank gets different samples in the next epoch", changes, hint)


def _flaw_hint(n: int, parts: list[list[int]]) -> str:
    """A hint if the ranks do not take each sample exactly once; "" if they do."""
    everything = set(range(n))
    taken = [i for part in parts for i in part]
    if not everything.issuperset(taken):
        return "it gave a sample that does not exist: they are numbered from 0 to n - 1."
    if any(len(set(part)) < len(part) for part in parts):
        return "a rank takes the same sample twice: a permutation has each number once."
    if len(taken) == n * len(parts) > n:
        return "every rank takes all samples: give each only its part."
    if everything.difference(taken):
        if len(taken) > len(set(taken)):
            return "some are taken twice and others by nobody: all ranks must share out one permutation, with one seed."
        return "some are taken by nobody. When they don't divide evenly, some ranks take one more."
    if len(taken) > n:
        return "some are taken twice. DistributedSampler fills up like this, but here some ranks may have one fewer."
    return ""


shard_of = Exercise("shard_of", observe_shard_of, shard_properties, communicates=False, ready=join, stuck=ENDLESS_HINT)
