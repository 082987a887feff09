"""Times ways to send gradients on emulated links, for 07c_less_communication's question of when compressing pays."""

import time
from collections.abc import Mapping

import torch
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.machine import emulation, world
from workshop_lib.training import rendezvous

from lessons.less_communication import compression

LAYERS, WIDTH = 4, 1024  # a layer has 4 MiB of gradients, which are a bucket of their own


def step_ms(gb_per_s: float, ns_per_entry: Mapping[str, float]) -> dict[str, float]:
    """Return the milliseconds of a step on the slowest rank, by way to send, at this bandwidth between nodes.

    ns_per_entry: how long each way compresses an entry. All ranks call it while they emulate a machine, and it blocks.
    """
    rendezvous.join_process_group(world.detect(), torch.device("cpu"))
    emulation.current().set_network(1e9 * gb_per_s)
    taken_ms = {}
    for way, ns in ns_per_entry.items():
        torch.manual_seed(1)
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        for layer in layers:
            emulation.takes(layer, forward_s=2e-3, backward_s=4e-3 + 1e-9 * ns * WIDTH**2)
        model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=4)
        compression.ways()[way](model)
        for _ in range(3):  # DDP orders its buckets in the second step
            MPI.COMM_WORLD.Barrier()
            began_s = time.perf_counter()
            model(torch.randn(4, WIDTH)).square().mean().backward()
            taken_ms[way] = 1e3 * MPI.COMM_WORLD.allreduce(time.perf_counter() - began_s, MPI.MAX)
    return taken_ms
