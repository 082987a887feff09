"""Joins the ranks of 05_ddp to one gloo process group, as `dist.init_process_group("gloo")` does under torchrun.

The ranks keep the group until they end.
"""

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist

from workshop_lib.machine import world
from workshop_lib.training import rendezvous

GROUP_HINT = "Is a number of ranks written into your code? Take it from `dist.get_world_size()`."


def join() -> None:
    """Join the process group. All ranks call it, and it blocks."""
    rendezvous.join_process_group(world.detect(), torch.device("cpu"))


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Make each rank the only one of its process group inside a `with` block. All ranks enter it together."""
    everyone = dist.GroupMember.WORLD
    own, _ = dist.new_subgroups(group_size=1)
    dist.GroupMember.WORLD = own
    try:
        yield
    finally:
        dist.GroupMember.WORLD = everyone
        dist.destroy_process_group(own)
