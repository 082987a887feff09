"""Joins the ranks of 05_ddp to one gloo process group, as `dist.init_process_group("gloo")` does under torchrun.

The ranks keep the group until they end.
"""

import torch

from workshop_lib.machine import world
from workshop_lib.training import rendezvous


def join() -> None:
    """Join the process group. All ranks call it, and it blocks."""
    rendezvous.join_process_group(world.detect(), torch.device("cpu"))
