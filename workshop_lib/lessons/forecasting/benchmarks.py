"""Measures on the ranks what a training step is made of: messages, allreduces, and whole steps.

08c_forecasting calls it through fit.py. All ranks call these functions together, and they block. Under a launcher, like
the OSU micro-benchmarks,

    mpiexec -n 2 python -m mpi4py -m workshop_lib.lessons.forecasting.benchmarks [BYTES]

prints a table for messages of up to BYTES. (`-m mpi4py` ends all ranks when one fails.)
"""

import os
import sys
import time
from collections.abc import Iterable
from copy import copy
from typing import TypedDict

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist
from workshop_lib.errors import InputError
from workshop_lib.lessons.forecasting import benchmark
from workshop_lib.machine import environment
from workshop_lib.machine import world as worlds
from workshop_lib.models import torch_cnn
from workshop_lib.training import memory, rendezvous
from workshop_lib.training.backends.mpi import Mpi

LR = 0.01
ROUND_S = 0.1  # a step varies more than a message, so its rounds are longer
WARM_UP_STEPS = 3


def communication(
    sizes_bytes: Iterable[int] = benchmark.SIZES_BYTES, repeats: int = benchmark.REPEATS, device_name: str = "auto"
) -> list[benchmark.MessageRow]:
    """Measure a ping-pong between ranks 0 and 1, and allreduces in all ways: MPI's, gloo's or NCCL's, and handwritten.

    Returns rows as `benchmark.row` makes them. `device_name` has the same values as `device` in TrainOptions. Raises
    InputError on fewer than two ranks.
    """
    world = worlds.detect()
    comm = world.mpi_comm()
    where = worlds.choose_device(device_name, world)
    rendezvous.join_process_group(world, where)
    rows = benchmark.ping_pong(comm, sizes_bytes, repeats)
    return rows + benchmark.allreduces(comm, benchmark.ways(comm, where), sizes_bytes, repeats)


def perceptron(width: int) -> nn.Sequential:
    """A network with one hidden layer: images [n, 1, 28, 28] -> logits [n, 10]. It has 795 width + 10 parameters.

    The arithmetic per sample and the bytes of the gradients both grow in proportion to the parameters.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, width), nn.ReLU(), nn.Linear(width, 10))


class StepRow(TypedDict):
    """Times of training steps of `perceptron(width)` with `batch` samples per rank; each list has one value per round.

    Both times are the slowest rank's. `compute_s` is the time of a step without its allreduce, computed by all ranks
    at the same time, and `step_s` the time of a whole step of synchronous SGD (backends/mpi.py).
    """

    width: int
    batch: int
    ranks: int
    parameters: int
    message_bytes: int  # bytes of all gradients
    compute_s: list[float]
    step_s: list[float]


def steps(
    settings: Iterable[tuple[int, int]], repeats: int = 5, device_name: str = "auto", alone: bool = False
) -> list[StepRow]:
    """Time training steps for each (width, batch); return one row per setting, on every rank.

    Each repeat goes through all settings. With `alone`, rank 0 measures as if it were the only rank, while the other
    ranks return an empty list at once. Raises InputError for a width or batch below 1.
    """
    world = worlds.detect()
    if alone and world.rank > 0:
        return []
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    memory.keep_freed_memory()
    data = mnist.load("train")
    backend = Mpi(world, worlds.choose_device(device_name, world))
    if alone:
        backend.world = worlds.World()
        backend.comm = MPI.COMM_SELF
    timers = [_Steps(copy(backend), data, width, batch) for width, batch in dict.fromkeys(settings)]
    for timer in timers:
        timer.warm_up()
    for _ in range(repeats):
        for timer in timers:
            timer.measure()
    return [timer.row for timer in timers]


class _Steps:
    """Times the steps of one network with one batch on this rank."""

    def __init__(self, backend: Mpi, data: mnist.Split, width: int, batch: int):
        if width < 1 or batch < 1:
            raise InputError(f"width {width} and batch {batch}: both must be at least 1.")
        self.backend = backend
        self.comm = backend.comm
        where = backend.device
        world = backend.world
        torch.manual_seed(0)
        self.model = perceptron(width).to(where)
        _, self.optimizer = self.backend.wrap(
            self.model, lambda parameters: torch.optim.SGD(parameters, LR, momentum=0.9, fused=True)
        )
        chosen = np.random.default_rng(world.rank).integers(0, data.total, batch)
        self.images = torch.tensor(data.images[chosen], device=where)
        self.labels = torch.tensor(data.labels[chosen], device=where).long()
        parameters = sum(each.numel() for each in self.model.parameters())
        self.row: StepRow = {
            "width": width,
            "batch": batch,
            "ranks": world.world_size,
            "parameters": parameters,
            "message_bytes": 4 * parameters,
            "compute_s": [],
            "step_s": [],
        }

    def step(self, average: bool) -> float:
        """Run one step, with its allreduce only if `average`; return the seconds until this rank is done."""
        start = time.perf_counter()
        self.model.zero_grad(set_to_none=False)
        cross_entropy(self.model(torch_cnn.normalize(self.images)), self.labels).backward()
        if average:
            self.backend.average_gradients()
        else:
            self.backend.flat.div_(self.backend.world.world_size)  # the division that averaging adds to its sum
        self.optimizer.step()
        benchmark.wait_for(self.images.device)
        return time.perf_counter() - start

    def warm_up(self) -> None:
        """Warm up, and find how many steps fit into a round: the same number on every rank."""
        for _ in range(WARM_UP_STEPS):
            took_s = max(self.comm.allgather(self.step(average=True)))
        self.steps = max(2, round(ROUND_S / took_s))

    def measure(self) -> None:
        """Measure one round of steps without their allreduce, and one round of whole steps."""
        self.row["compute_s"].append(self._alone())
        self.comm.Barrier()
        start = time.perf_counter()
        for _ in range(self.steps):
            self.step(average=True)
        self.row["step_s"].append(max(self.comm.allgather(time.perf_counter() - start)) / self.steps)

    def _alone(self) -> float:
        """Mean over steps, without their allreduce, of the slowest rank's seconds in each step.

        The slowest rank counts because all ranks would wait for it in the allreduce. The ranks start each step
        together, as the allreduce would make them do.
        """
        seconds = []
        for _ in range(self.steps):
            self.comm.Barrier()
            seconds.append(self.step(average=False))
        return float(np.max(self.comm.allgather(seconds), axis=0).mean())


def main(arguments: list[str]) -> None:
    environment.clean()
    most_bytes = int(arguments[0]) if arguments else max(benchmark.SIZES_BYTES)
    rows = communication([nbytes for nbytes in benchmark.SIZES_BYTES if nbytes <= most_bytes])
    if MPI.COMM_WORLD.rank > 0:
        return
    print(f"{rows[-1]['ranks']} ranks; median, least and most of {len(rows[-1]['seconds'])} rounds")
    print(f"{'':>18} {'bytes':>11} {'us':>11} {'least':>11} {'most':>11} {'algorithm':>10} {'bus GB/s':>10}")
    for row in rows:
        microseconds = " ".join(f"{1e6 * row[name]:>11,.2f}" for name in ("median_s", "min_s", "max_s"))
        bandwidths = " ".join(f"{row[name] / 1e9:>10.3f}" for name in ("algorithm_bytes_per_s", "bus_bytes_per_s"))
        print(f"{row['way']:>18} {row['message_bytes']:>11,} {microseconds} {bandwidths}")


if __name__ == "__main__":
    main(sys.argv[1:])
