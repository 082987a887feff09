"""Rank side of the exercises in 05_ddp. The ranks keep one gloo process group for their life."""

import functools
import operator
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.training import rendezvous
from workshop_lib.training import world as worlds

SAMPLES = 5  # in each micro-batch
LATE_S = 0.1  # by which rank 1 comes later to each bucket: who waits for an allreduce waits that long
SHARED = [(n, size) for n in (10, 103, 8, 1) for size in (1, 2, 3, 4)]  # samples, ranks
EPOCHS = (1, 2, 3)


def join() -> None:
    """Join the process group; imports what the probes need, so that their own time is short."""
    rendezvous.join_process_group(worlds.detect(), torch.device("cpu"))
    _alone()


@functools.cache
def _alone() -> dist.ProcessGroup:
    """A group of this rank alone. All ranks call it, the first time."""
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]


def _network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def _samples(rank: int, k: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The k micro-batches of a rank: float64 [SAMPLES, 6] and labels int64 [SAMPLES]."""
    random = torch.Generator().manual_seed(100 + rank)
    return [
        (
            torch.randn(SAMPLES, 6, generator=random, dtype=torch.float64) * (1 + rank),
            torch.randint(3, (SAMPLES,), generator=random),
        )
        for _ in range(k)
    ]


def _gradient(model: nn.Module) -> np.ndarray | None:
    """All gradients in one vector; None when one is missing."""
    if any(p.grad is None for p in model.parameters()):
        return None
    return torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()


def _gradient_of(micro_batches: list) -> np.ndarray:
    """The gradient of the mean loss over all samples in these micro-batches, on one process."""
    model = _network()
    inputs, labels = (torch.cat(column) for column in zip(*micro_batches, strict=True))
    cross_entropy(model(inputs), labels).backward()
    return _gradient(model)


def accumulate(comm, function) -> list[dict]:
    """Gradients, allreduces and the order of events, for four micro-batches and for a single one."""
    join()
    return [_accumulated(comm, function, k) for k in (4, 1)]


def _accumulated(comm, function, k: int) -> dict:
    model = DistributedDataParallel(_network())
    allreduces, events = [], []

    def counted(_, bucket):
        allreduces.append(bucket.index())
        return default_hooks.allreduce_hook(None, bucket)

    def noted(_, inputs, output):
        events.append(("forward", model.require_backward_grad_sync, len(inputs[0])))
        if output.requires_grad:
            output.register_hook(
                lambda _: events.append(("backward", model.require_backward_grad_sync, len(inputs[0])))
            )

    model.register_comm_hook(None, counted)
    model.module.register_forward_hook(noted)
    mine = _samples(comm.rank, k)
    function(model, list(mine), cross_entropy)
    everyone = [_samples(rank, k) for rank in range(comm.size)]
    return {
        "k": k,
        "size": comm.size,
        "gradient": _gradient(model.module),
        "expected": _gradient_of([batch for of_rank in everyone for batch in of_rank]),
        "last": _gradient_of([of_rank[-1] for of_rank in everyone]),
        "own": _gradient_of(mine),
        "allreduces": len(allreduces),
        "events": events,
        "samples": SAMPLES,
    }


def average_hook(comm, function) -> list[dict]:
    """What DDP makes of the hook: with all ranks in the process group, and in a group of one."""
    join()
    return [_hooked(comm, function, group) for group in (dist.group.WORLD, _alone())]


def _hooked(comm, function, group: dist.ProcessGroup) -> dict:
    # A tiny cap gives each parameter a bucket of its own, from the second step on.
    model = DistributedDataParallel(_network(), process_group=group, bucket_cap_mb=1e-6)
    calls = []

    def watched(process_group, bucket):
        if comm.rank == 1:
            time.sleep(LATE_S)
        begun = time.perf_counter()
        returned = function(process_group, bucket)
        seconds = time.perf_counter() - begun
        call = {"type": type(returned).__name__, "holds": None, "seconds": seconds}
        calls.append(call)
        buffer = bucket.buffer()  # what DDP gets where the hook has nothing for it, so that the probe ends
        if not isinstance(returned, torch._C.Future):
            returned = torch.futures.Future()
            returned.set_result(buffer)

        def noted(future):
            value = future.value()
            call["holds"] = type(value).__name__
            return value if call["holds"] == "Tensor" else buffer

        return returned.then(noted)

    model.register_comm_hook(group, watched)
    mine = _samples(comm.rank, 1)
    for _ in range(2):
        model.zero_grad()
        cross_entropy(model(mine[0][0]), mine[0][1]).backward()
    gradient = _gradient(model.module)
    comm.Barrier()  # an allreduce that the hook did not wait for has ended on no rank before this
    members = dist.get_process_group_ranks(group)
    return {
        "size": len(members),
        "ranks": comm.size,
        "gradient": gradient,
        "expected": _gradient_of([_samples(rank, 1)[0] for rank in members]),
        "of_all": _gradient_of([_samples(rank, 1)[0] for rank in range(comm.size)]),
        "own": _gradient_of(mine),
        "calls": calls,
        "late_s": LATE_S,
    }


def shard_of(comm, function) -> dict:
    """{(n, size): for each epoch, what each rank of that size takes}, and the same a second time."""
    return {"first": _shards(function), "again": _shards(function)}


def _shards(function) -> dict:
    return {
        (n, size): [[_plain(function(n, epoch, rank, size)) for rank in range(size)] for epoch in EPOCHS]
        for n, size in SHARED
    }


def _plain(returned):
    """Arrays and tensors as lists, their numbers as Python's; anything else as it is."""
    if hasattr(returned, "tolist"):
        return returned.tolist()
    if isinstance(returned, list | tuple | range):
        return [operator.index(i) if hasattr(i, "__index__") else i for i in returned]
    return returned
