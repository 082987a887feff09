"""Run by mpiexec: our averaging beside two process groups, one after the other, each on a port of its own.

On one port they hang, with and without our averaging, as soon as rank 0 is late: the other rank finds its first store.
"""

import os
import socket
import time
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist
from mpi4py import MPI

from workshop_lib.training.backends.mpi import Mpi

comm = MPI.COMM_WORLD
for _ in range(2):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = comm.bcast(free.getsockname()[1])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", where, timedelta(seconds=20), rank=comm.rank, world_size=comm.size)
    backend = Mpi(SimpleNamespace(rank=comm.rank, world_size=comm.size, mpi_comm=lambda: comm), torch.device("cpu"))
    model, optimizer = backend.wrap(torch.nn.Linear(5, 3), lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 5)).sum().backward()
        backend.average_gradients()
        optimizer.step()
    time.sleep(0.3 * (comm.rank == 0))
    dist.destroy_process_group()
