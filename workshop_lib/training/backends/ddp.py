"""PyTorch's DistributedDataParallel, which averages gradients during the backward pass, bucket by bucket.

A process keeps its one process group until it ends, even if it trains many times. With torch 2.13, dropping a DDP model
after destroy_process_group() can hang, because the model's reducer joins a gloo thread while it holds the interpreter
lock. With 2.15, it did not hang in 25 tries.
"""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.machine.emulation import session
from workshop_lib.machine.world import GPU_COLLECTIVES
from workshop_lib.training.backends.pytorch import MakeOptimizer, TorchBackend
from workshop_lib.training.rendezvous import join_over_mpi, join_process_group

BUCKET_MB = 25  # PyTorch's default, in MiB


class Ddp(TorchBackend):
    """DDP over gloo on CPUs, over NCCL if every rank has its own GPU, or over MPI, which needs a second group."""

    name = "ddp"
    one_forward = True

    def __init__(self, world, device, comm: str = "auto"):
        super().__init__(world, device)
        default = join_process_group(world, device)
        self.emulation = session.CURRENT.emulation
        over_mpi = comm == "mpi" or self.emulation is not None
        self.group = join_over_mpi(world, device) if over_mpi else default
        self.transport = "mpi" if comm == "mpi" else "emulated" if over_mpi else dist.get_backend()
        self.message_device = device if self.transport in GPU_COLLECTIVES.values() else torch.device("cpu")

    def wrap(self, model: nn.Module, make_optimizer: MakeOptimizer):
        # Where the network stands for a larger one, its buckets have the larger one's number.
        bucket_mb = BUCKET_MB / self.emulation.places.scale if self.emulation is not None else None
        # The constructor broadcasts the weights of rank 0.
        forward = DistributedDataParallel(
            model, process_group=self.group, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
        )
        return forward, make_optimizer(model.parameters())

    def sum(self, values: np.ndarray) -> np.ndarray:
        total = torch.tensor(values, device=self.message_device)
        dist.all_reduce(total, group=self.group)
        return total.cpu().numpy()

    def allgather(self, value) -> list:
        gathered = [None] * self.world.world_size
        dist.all_gather_object(gathered, value, group=self.group)
        return gathered
