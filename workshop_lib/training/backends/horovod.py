"""Horovod for PyTorch. What turns a one-process script into this:

    hvd.init()                                                   one process of many
    torch.cuda.set_device(hvd.local_rank())                      a GPU of its own (training/device.py)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)    everybody starts alike
    optimizer = hvd.DistributedOptimizer(optimizer, …)           gradients are averaged during backward

and, as with every backend, shards by the global rank, a learning rate chosen for the global batch,
checkpoints written by rank 0 and metrics summed over the ranks (loop.py).
"""

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn

from workshop_lib.training.backends import horovod_process
from workshop_lib.training.backends.base import Backend, MakeOptimizer


class Horovod(Backend):
    """All reductions go through Horovod's background thread, tensor by tensor, fused as they come."""

    name = "horovod"
    communication_s = None  # happens in the background thread, overlapped with backward
    one_forward = True

    def __init__(self, world, device):
        super().__init__(world, device)
        horovod_process.start(hvd, world)

    def wrap(self, model: nn.Module, make_optimizer: MakeOptimizer):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = make_optimizer(model.parameters())
        # In one group, the gradients of this small network leave in one message, and not in several cycles.
        names = model.named_parameters()
        return model, hvd.DistributedOptimizer(optimizer, named_parameters=names, op=hvd.Average, groups=1)

    def sum(self, values: np.ndarray) -> np.ndarray:
        return hvd.allreduce(torch.tensor(values), op=hvd.Sum, name="sum").numpy()

    def allgather(self, value) -> list:
        return hvd.allgather_object(value, name="value")  # else named by its type, which may differ

    def close(self) -> None:
        hvd.shutdown()
