"""DDP with compressed gradients, on three ranks: what is sent, what is kept, and how many bytes."""

import math

import pytest
import torch
from mpi4py import MPI
from our_ranks import on_every_rank
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.machine import world
from workshop_lib.training import rendezvous

from lessons.less_communication import compression
from lessons.less_communication import runs as lesson

pytestmark = pytest.mark.full

RANKS = 3
COMPRESS = compression.SOLUTION.load()
MEAN = lesson.ways()["local SGD, 8 steps alone"].outer
STEPS = 15


def network():
    """Wide enough that PowerSGD compresses its matrices."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 20), nn.Tanh(), nn.Linear(20, 3))


def wrapped(register, **how):
    """The network in DDP, with the communication hook that `register` registers."""
    torch.set_num_threads(1)
    rendezvous.join_process_group(world.detect(), torch.device("cpu"))
    model = DistributedDataParallel(network(), **how)
    register(model)
    return model


def flat(tensors):
    return torch.cat([torch.as_tensor(tensor).detach().flatten() for tensor in tensors])


def gradient(model, step, rank=None):
    """The gradient that a backward pass over this rank's batch leaves."""
    random = torch.Generator().manual_seed(100 * (MPI.COMM_WORLD.rank if rank is None else rank) + step)
    inputs, labels = torch.randn(8, 30, generator=random), torch.randint(3, (8,), generator=random)
    model.zero_grad()
    cross_entropy(model(inputs), labels).backward()
    return flat(p.grad for p in model.parameters())


def exact(step):
    """The mean gradient of all ranks' batches, on this process alone."""
    return sum(gradient(network(), step, rank) for rank in range(RANKS)) / RANKS


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


def conserved(compress):
    """How far what came of 15 gradients and what is still kept are from their sum, over several buckets; and its share
    that is kept."""
    top = compression.TopK(0.05, compress)
    model = wrapped(lambda model: model.register_comm_hook(None, top.hook), bucket_cap_mb=0.004)
    arrived = sum(gradient(model, step) for step in range(STEPS))
    kept = flat(top.residuals.get(p, torch.zeros(p.numel())) for p in model.parameters())
    summed = torch.tensor(MPI.COMM_WORLD.allreduce(kept.numpy())) / RANKS
    total = sum(exact(step) for step in range(STEPS))
    return relative(arrived + summed, total), float(summed.norm() / total.norm())


@on_every_rank
def test_with_feedback_nothing_is_lost_over_many_steps_and_without_it_something_is():
    difference, kept = conserved(COMPRESS)
    assert difference < 1e-6 and kept > 0.05
    difference, kept = conserved(compression.forgetful)
    assert difference > 0.05 and kept == 0


SHAPES = [tuple(p.shape) for p in network().parameters()]
NUMBERS = sum(math.prod(shape) for shape in SHAPES)
MATRICES = [shape for shape in SHAPES if len(shape) == 2]
BYTES_AND_MESSAGES = {
    "fp32": (4 * NUMBERS, 1),
    "fp16": (2 * NUMBERS, 1),
    "PowerSGD, rank 2": (
        4 * (NUMBERS - sum(math.prod(shape) for shape in MATRICES) + sum(2 * sum(shape) for shape in MATRICES)),
        3,
    ),
    "top 1 %": (8 * round(0.01 * NUMBERS), 1),
    "top 1 %, no feedback": (8 * round(0.01 * NUMBERS), 1),
    "top 0.1 %": (8 * round(0.001 * NUMBERS), 1),
}


@pytest.mark.parametrize("way", compression.ways())
@on_every_rank
def test_the_ranks_train_and_stay_equal_and_the_bytes_are_counted(way):
    model = wrapped(compression.ways()[way])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        with compression.count_messages() as sent:
            gradient(model, step)
        optimizer.step()
    weights = flat(model.parameters())
    assert len(set(MPI.COMM_WORLD.allgather(weights.numpy().tobytes()))) == 1
    assert relative(weights, flat(network().parameters())) > 1e-3
    assert (sent["bytes"], sent["messages"]) == BYTES_AND_MESSAGES[way]


@on_every_rank
def test_rounds_of_local_steps_train_and_count():
    ways = {"every step": lesson.ways()["fp32"], "1": lesson.Rounds(1, MEAN), "3": lesson.Rounds(3, MEAN)}
    ways["top 1 %"] = lesson.ways()["top 1 %"]
    runs = {name: lesson.train(name, way, steps=4, batch=16) for name, way in ways.items()}
    whole = 4 * 20_434 / 16
    assert all(run["ranks_identical"] for run in runs.values())
    assert {name: run["bytes_per_sample"] for name, run in runs.items()} == {
        "every step": whole,
        "1": whole,
        "3": whole / 2,  # four steps, one of them after three
        "top 1 %": 8 * 204 / 16,
    }
    assert runs["1"]["test_accuracy"] == pytest.approx(runs["every step"]["test_accuracy"], abs=0.01)
