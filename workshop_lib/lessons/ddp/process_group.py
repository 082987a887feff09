"""Joins the ranks of 05_ddp to one gloo process group, as `dist.init_process_group("gloo")` does under torchrun.

Some exercises also need a group of one rank alone. The ranks keep both groups until they end.
"""

import functools

import torch
import torch.distributed as dist

from workshop_lib.machine import world
from workshop_lib.training import rendezvous


def join() -> None:
    """Join the process group, and create a group of this rank alone. All ranks call it, and it blocks."""
    rendezvous.join_process_group(world.detect(), torch.device("cpu"))
    alone()


@functools.cache
def alone() -> dist.ProcessGroup:
    """The process group of this rank alone. The first call creates it, and all ranks must make that call."""
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
