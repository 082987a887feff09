"""PyTorch's DistributedDataParallel: gradients are averaged during backward, bucket by bucket.

A process has one process group, kept until it ends, also when it trains many times: with
torch 2.13, dropping a DDP model after destroy_process_group() can hang, because its reducer
joins a gloo thread while it holds the interpreter lock.
"""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.training.backends.pytorch import MakeOptimizer, TorchBackend
from workshop_lib.training.rendezvous import join_process_group


class Ddp(TorchBackend):
    """gloo on CPUs, NCCL when every rank has a GPU of its own."""

    name = "ddp"
    communication_s = None  # happens inside backward, overlapped with it
    one_forward = True

    def __init__(self, world, device):
        super().__init__(world, device)
        join_process_group(world, device)
        nccl = dist.get_backend() == "nccl"
        self.message_device = device if nccl else torch.device("cpu")

    def wrap(self, model: nn.Module, make_optimizer: MakeOptimizer):
        # The constructor broadcasts the weights of rank 0.
        return DistributedDataParallel(model, gradient_as_bucket_view=True), make_optimizer(model.parameters())

    def sum(self, values: np.ndarray) -> np.ndarray:
        total = torch.tensor(values, device=self.message_device)
        dist.all_reduce(total)
        return total.cpu().numpy()

    def allgather(self, value) -> list:
        gathered = [None] * self.world.world_size
        dist.all_gather_object(gathered, value)
        return gathered
