"""Synchronous SGD written by hand, with one Allreduce of all gradients in each step, over mpi4py."""

import time

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from workshop_lib.training.backends.base import CollectiveSpan
from workshop_lib.training.backends.pytorch import MakeOptimizer, TorchBackend


class Mpi(TorchBackend):
    """Averages all gradients in one flat buffer, with one message per step.

    One message per tensor would pay the latency six times.
    """

    name = "mpi"

    def __init__(self, world, device):
        super().__init__(world, device)
        self.comm = world.mpi_comm()

    def wrap(self, model: nn.Module, make_optimizer: MakeOptimizer):
        parameters = list(model.parameters())
        size = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(size, dtype=parameters[0].dtype, device=self.device)
        parts = self.flat.split([parameter.numel() for parameter in parameters])
        self.views = [(parameter, part.view_as(parameter)) for parameter, part in zip(parameters, parts, strict=True)]
        for parameter in parameters:
            self.broadcast(parameter)
        self.attach()
        return model, make_optimizer(parameters)

    def attach(self) -> None:
        """Make each gradient a view into the buffer, and keep its values.

        By default, zero_grad() drops these views, and the backward pass then puts the gradients elsewhere.
        """
        for parameter, view in self.views:
            gradient = parameter.grad
            if gradient is view:
                continue
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient)
            parameter.grad = view

    def broadcast(self, parameter: nn.Parameter) -> None:
        """Give every rank the values of rank 0. Blocks."""
        host = parameter.detach().cpu().clone(memory_format=torch.contiguous_format)
        self.comm.Bcast(host.numpy(), root=0)
        with torch.no_grad():
            parameter.copy_(host)

    def average_gradients(self) -> CollectiveSpan:
        """Average all gradients with one blocking Allreduce. Its span includes waiting for slower ranks."""
        self.attach()
        host = self.flat.cpu()  # the buffer itself if it is on the CPU
        start = time.perf_counter()  # only now has a GPU finished the backward pass
        self.comm.Allreduce(MPI.IN_PLACE, host.numpy(), MPI.SUM)
        end = time.perf_counter()
        self.flat.copy_(host).div_(self.world.world_size)
        return start, end

    def sum(self, values: np.ndarray) -> np.ndarray:
        total = np.empty_like(values)
        self.comm.Allreduce(values, total, MPI.SUM)
        return total

    def allgather(self, value) -> list:
        return self.comm.allgather(value)
