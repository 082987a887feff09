"""Horovod for PyTorch. What turns a one-process script into this:

    hvd.init()                                                   one process of many
    torch.cuda.set_device(hvd.local_rank())                      a GPU of its own (training/world.py)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)    everybody starts alike
    optimizer = hvd.DistributedOptimizer(optimizer, …)           gradients are averaged during backward

and, as with every backend, shards by the global rank, a learning rate chosen for the global batch,
checkpoints written by rank 0 and metrics summed over the ranks (trainer.py).
"""

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn

from workshop_lib.training.backends.horovod_process import HorovodRanks
from workshop_lib.training.backends.pytorch import MakeOptimizer, TorchBackend


class Horovod(HorovodRanks, TorchBackend):
    """All reductions go through Horovod's background thread, tensor by tensor, fused as they come."""

    name = "horovod"
    hvd = hvd
    communication_s = None  # happens in the background thread, overlapped with backward
    one_forward = True

    def wrap(self, model: nn.Module, make_optimizer: MakeOptimizer):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = make_optimizer(model.parameters())
        # In one group, the gradients of this small network leave in one message, and not in several cycles.
        names = model.named_parameters()
        return model, hvd.DistributedOptimizer(optimizer, named_parameters=names, op=hvd.Average, groups=1)

    def sum(self, values: np.ndarray) -> np.ndarray:
        return hvd.allreduce(torch.tensor(values), op=hvd.Sum, name="sum").numpy()
