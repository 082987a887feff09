"""A small script that trains in one of four ways. It runs on emulated ranks, and dry as one of ranks that don't exist.

Each layer takes 3 ms forward and 6 ms backward, and has 4 MiB of weights. So on a slow network some messages are
hidden, and others are not.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from workshop_lib.machine import emulation

WIDTH, LAYERS = 1024, 8
ROWS = {"ddp": 8, "fsdp2": 8, "tensor": 256, "mesh": 256}  # tensor parallelism sends them
FORWARD_S, BACKWARD_S = 3e-3, 6e-3


class Pair(nn.Module):
    """Two linear layers, which tensor parallelism cuts by columns and by rows."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.down = nn.Linear(WIDTH // 2, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def build(way: str, ranks: int) -> nn.Module:
    network = nn.Sequential(*[Pair() for _ in range(LAYERS)])
    columns = {"ddp": 1, "fsdp2": 1, "tensor": ranks, "mesh": 4}[way]
    mesh = init_device_mesh("cpu", (ranks // columns, columns), mesh_dim_names=("data", "tensor"))
    if columns > 1:
        for pair in network:
            parallelize_module(pair, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for pair in network:
        emulation.takes(pair, FORWARD_S, BACKWARD_S)
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(network, bucket_cap_mb=4)
    if way != "tensor":
        for pair in network:
            fully_shard(pair, mesh=mesh["data"])
        fully_shard(network, mesh=mesh["data"])
    return network


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = build(sys.argv[1], dist.get_world_size())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(int(sys.argv[2])):
        optimizer.zero_grad()
        model(torch.ones(ROWS[sys.argv[1]], WIDTH, requires_grad=True)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
