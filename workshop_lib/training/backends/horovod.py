"""Horovod for PyTorch. These calls turn a one-process script into one that uses Horovod:

    hvd.init()                                                   joins the other processes
    torch.cuda.set_device(hvd.local_rank())                      gives each rank its own GPU (machine/world.py)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)    gives every rank the weights of rank 0
    optimizer = hvd.DistributedOptimizer(optimizer, …)           averages gradients during the backward pass

As with every backend, the script must also shard the data by the global rank, choose a learning rate for the global
batch, write checkpoints on rank 0 only, and sum metrics over the ranks (trainer.py).
"""

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn

from workshop_lib.training.backends.horovod_process import HorovodRanks
from workshop_lib.training.backends.pytorch import MakeOptimizer, TorchBackend


class Horovod(HorovodRanks, TorchBackend):
    """Horovod, whose background thread does all reductions. It fuses tensors that are ready at the same time."""

    name = "horovod"
    hvd = hvd
    one_forward = True

    def wrap(self, model: nn.Module, make_optimizer: MakeOptimizer):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = make_optimizer(model.parameters())
        # As one group, the gradients of this small network are sent in one message, and not over several cycles.
        names = model.named_parameters()
        return model, hvd.DistributedOptimizer(optimizer, named_parameters=names, op=hvd.Average, groups=1)

    def sum(self, values: np.ndarray) -> np.ndarray:
        return hvd.allreduce(torch.tensor(values), op=hvd.Sum, name="sum").numpy()
