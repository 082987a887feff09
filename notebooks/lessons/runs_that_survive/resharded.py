"""A small run with FSDP on the first ranks of several, for the checkpoints that 13b_runs_that_survive reshards."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import cross_entropy

from lessons.zero_and_fsdp import by_hand

WIDTH = 48


def mesh_of_first(ranks: int) -> DeviceMesh:
    """The mesh of the first ranks. All ranks of the process group call it."""
    return DeviceMesh("cpu", list(range(ranks)))


def start(mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network that the ranks of the mesh shard, and its optimizer. These ranks call it, and no others."""
    model = by_hand.with_fsdp(by_hand.perceptron(WIDTH), mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh, first: int, last: int
) -> dict[int, float]:
    """Take the steps from `first` up to `last`, and return their losses by step. All ranks of the mesh call it.

    A step has the same 192 images on one, two and three ranks.
    """
    losses = {}
    for step in range(first, last):
        images, labels = by_hand.global_batch(step, ranks=3)
        mine = slice(mesh.get_local_rank(), None, mesh.size())
        loss = cross_entropy(model(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / mesh.size()
        dist.all_reduce(mean, group=mesh.get_group())
        losses[step] = mean.item()
    return losses
