"""What 05 says that DDP leaves to its user: clipping, memory, and unequal steps."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from lessons.ddp.process_group import join

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
pytestmark = [pytest.mark.lesson("05"), pytest.mark.usefixtures("healthy")]


def bytes_per_parameter() -> list[float]:
    """On a rank: what training with Adam and DDP keeps, without and with `gradient_as_bucket_view`."""
    join()
    kept = []
    for view in (False, True):
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        ddp = DistributedDataParallel(model, gradient_as_bucket_view=view)
        buckets = []

        def hook(group, bucket, buckets=buckets):
            buckets.append(bucket.buffer())
            return default_hooks.allreduce_hook(group, bucket)

        ddp.register_comm_hook(None, hook)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):  # in its first step, DDP may still rearrange its buckets
            buckets.clear()
            optimizer.zero_grad(set_to_none=not view)
            ddp(torch.ones(1, 64)).sum().backward()
            optimizer.step()
        parameters = list(model.parameters())
        state = [each for of_one in optimizer.state.values() for each in of_one.values() if each.numel() > 1]
        tensors = [*parameters, *(p.grad for p in parameters), *buckets, *state]
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
        kept.append(sum(storages.values()) / sum(p.numel() for p in parameters))
    return kept


def test_ddp_keeps_twenty_bytes_per_parameter_or_sixteen(team):
    for kept in team.run(bytes_per_parameter, show=False):
        assert kept == [20, 16]


def clipped() -> list[list]:
    """On a rank: the gradient clipped to norm 1 after DDP has averaged it, and in one process with all samples."""
    join()
    size = dist.get_world_size()
    samples = torch.arange(1.0, size + 1).diag() * 10  # each rank's gradient has a direction and a length of its own
    found = []
    for model, inputs in (
        (DistributedDataParallel(torch.nn.Linear(size, 1)), samples[[dist.get_rank()]]),
        (torch.nn.Linear(size, 1), samples),
    ):
        model(inputs).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        found.append(next(model.parameters()).grad.flatten().tolist())
    return found


def test_gradients_clipped_after_the_averaging_are_those_of_one_process(team):
    for after, alone in team.run(clipped, show=False):
        assert after == pytest.approx(alone)


def joined() -> tuple[list, list]:
    """On a rank: its gradient in its last step, and its weights, after rank 0 has taken three steps and others one."""
    join()
    ddp = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with ddp.join():
        for _ in range(3 if dist.get_rank() == 0 else 1):
            optimizer.zero_grad()
            ddp(torch.ones(1, 1)).sum().backward()
            optimizer.step()
    return ddp.module.weight.grad.tolist(), ddp.module.weight.tolist()


def test_join_lets_ranks_take_different_numbers_of_steps(team):
    (gradient, weights), *others = team.run(joined, timeout=20, show=False)
    assert gradient == [[1 / team.n]], "the ranks that are done count as zeros"
    assert all(each[1] == weights for each in others)
