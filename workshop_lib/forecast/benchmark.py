"""Measures on the ranks what a training step is made of: messages, allreduces, and whole steps.

08c_forecasting calls it through fit.py, and `workshop preflight` uses it too. Each call is warmed up. In each of the
following rounds, every call takes its turn, so that a slow moment of the machine affects all of them. A turn makes as
many calls as fit into a round, between two readings of the clock, and the slowest rank's time counts. All ranks call
everything here together, and it blocks. Under a launcher, like the OSU micro-benchmarks,

    mpiexec -n 2 python -m mpi4py -m workshop_lib.forecast.benchmark [BYTES]

prints a table for messages of up to BYTES. (`-m mpi4py` ends all ranks when one fails.)
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from statistics import median
from typing import TypedDict

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.errors import InputError
from workshop_lib.machine import environment
from workshop_lib.machine import world as worlds
from workshop_lib.training import memory, rendezvous
from workshop_lib.training.backends.mpi import Mpi
from workshop_lib.training.data import mnist
from workshop_lib.training.models import torch_cnn

SIZES_BYTES = tuple(4**k for k in range(1, 14))  # 4 B to 64 MiB
REPEATS = 7
ROUND_S = 0.01
STEPS_ROUND_S = 0.1  # a step varies more than a message, so its rounds are longer
WARM_UP = 3
MOST_CALLS = 200
LR = 0.01

# A way takes a float32 array [n], and returns a call that sums the array over the ranks.
Way = Callable[[np.ndarray], Callable[[], None]]


class MessageRow(TypedDict):
    """Measurements of one way and message size: seconds per call in each round, their median and range, and bandwidth.

    The bus bandwidth is 2 (p - 1)/p times the message's bytes, divided by the median of the seconds. It is what a link
    carries with the best possible algorithm, so it can be compared between numbers of ranks (nccl-tests,
    PERFORMANCE.md). For a ping-pong, the factor is 1.
    """

    way: str
    ranks: int
    message_bytes: int
    seconds: list[float]
    median_s: float
    min_s: float
    max_s: float
    bus_bytes_per_s: float


def process_group(device) -> Way:
    """The way of PyTorch's allreduce over this rank's process group: gloo on CPUs; on GPUs, in their memory."""

    def on(array: np.ndarray) -> Callable[[], None]:
        tensor = torch.from_numpy(array).to(device)  # on a CPU, the tensor shares the array's memory

        def call() -> None:
            dist.all_reduce(tensor)
            wait_for(device)

        return call

    return on


def wait_for(device) -> None:
    """Block until a GPU has done what was asked of it. On a CPU, it has been done already."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def communication(sizes_bytes: Iterable[int] = SIZES_BYTES, repeats: int = REPEATS) -> list[MessageRow]:
    """Measure a ping-pong between ranks 0 and 1, and the allreduces of MPI and of gloo or NCCL.

    Returns rows as `row` makes them. Raises InputError on fewer than two ranks.
    """
    world = worlds.detect()
    comm = world.mpi_comm()
    where = worlds.choose_device("auto", world)
    rendezvous.join_process_group(world, where)
    ways: dict[str, Way] = {
        "MPI": lambda array: partial(comm.Allreduce, MPI.IN_PLACE, array, MPI.SUM),
        dist.get_backend(): process_group(where),
    }
    return ping_pong(comm, sizes_bytes, repeats) + allreduces(comm, ways, sizes_bytes, repeats)


def allreduces(
    comm, ways: dict[str, Way], sizes_bytes: Iterable[int] = SIZES_BYTES, repeats: int = REPEATS
) -> list[MessageRow]:
    """Time an allreduce of each size in each of these `ways`. Sizes are in bytes, and multiples of 4, for float32.

    Returns one row per size and way, on every rank.
    """
    rows = []
    for nbytes in sizes_bytes:
        array = np.zeros(nbytes // 4, np.float32)  # zeros stay 0 however often they are summed
        calls = {name: way(array) for name, way in ways.items()}
        for name, seconds in timed(comm, calls, repeats).items():
            rows.append(row(name, comm.size, nbytes, seconds))
    return rows


def ping_pong(comm, sizes_bytes: Iterable[int] = SIZES_BYTES, repeats: int = REPEATS) -> list[MessageRow]:
    """Time a message of each size in bytes between ranks 0 and 1, as half of a round trip.

    Returns one row per size, on every rank. Raises InputError when there is only one rank.
    """
    if comm.size < 2:
        raise InputError(f"ping-pong between ranks 0 and 1 of {comm.size}: start more ranks.")

    def there_and_back(ball: np.ndarray) -> None:
        if comm.rank == 0:
            comm.Send(ball, 1)
            comm.Recv(ball, 1)
        elif comm.rank == 1:
            comm.Recv(ball, 0)
            comm.Send(ball, 0)

    rows = []
    for nbytes in sizes_bytes:
        ball = np.ones(nbytes, np.uint8)  # ones are written to memory, so its pages really exist
        seconds = timed(comm, {"": partial(there_and_back, ball)}, repeats)[""]
        rows.append(row("ping-pong", 2, nbytes, [s / 2 for s in seconds]))
    return rows


def row(way: str, ranks: int, message_bytes: int, seconds: list[float]) -> MessageRow:
    """Make the MessageRow of one way and message size from the seconds of its rounds."""
    middle = median(seconds)
    return MessageRow(
        way=way,
        ranks=ranks,
        message_bytes=message_bytes,
        seconds=seconds,
        median_s=middle,
        min_s=min(seconds),
        max_s=max(seconds),
        bus_bytes_per_s=2 * (ranks - 1) / ranks * message_bytes / middle,
    )


def timed(comm, calls: dict[str, Callable[[], None]], repeats: int = REPEATS) -> dict[str, list[float]]:
    """Seconds per call on the slowest rank: one value per round, for each of these calls."""
    times = {}
    for name, call in calls.items():
        for _ in range(WARM_UP):
            took_s = _call_s(comm, call)
        times[name] = min(_fitting(ROUND_S, took_s), MOST_CALLS)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(_call_s(comm, call, times[name]))
            # If a rank has to wait for a core, calls are far slower than the warm-up promised: make fewer per round.
            times[name] = min(times[name], _fitting(10 * ROUND_S, seconds[name][-1]))
    return seconds


def _call_s(comm, call: Callable[[], None], times: int = 1) -> float:
    """Seconds per call on the slowest rank, averaged over `times` calls."""
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(times):
        call()
    return comm.allreduce(time.perf_counter() - start, MPI.MAX) / times


def _fitting(limit_s: float, call_s: float) -> int:
    """How many calls fit into this time; at least one."""
    return max(1, round(limit_s / call_s))


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


def steps(settings: Iterable[tuple[int, int]], repeats: int = 5) -> list[StepRow]:
    """Time training steps for each (width, batch); return one row per setting, on every rank.

    Each repeat goes through all settings.
    """
    world = worlds.detect()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    memory.keep_freed_memory()
    data = mnist.load("train")
    backend = Mpi(world, worlds.choose_device("auto", world))
    rows: list[StepRow] = []
    timers = []
    for width, batch in dict.fromkeys(settings):
        step, parameters = _step(copy(backend), data, width, batch)
        for _ in range(WARM_UP):
            took_s = _call_s(backend.comm, partial(step, True))
        timers.append((step, max(2, _fitting(STEPS_ROUND_S, took_s))))
        row = StepRow(
            width=width,
            batch=batch,
            ranks=backend.world.world_size,
            parameters=parameters,
            message_bytes=4 * parameters,
            compute_s=[],
            step_s=[],
        )
        rows.append(row)
    for _ in range(repeats):
        for row, (step, times) in zip(rows, timers, strict=True):
            row["compute_s"].append(_computing_s(backend.comm, step, times))
            row["step_s"].append(_call_s(backend.comm, partial(step, True), times))
    return rows


def _computing_s(comm, step: Callable[[bool], None], times: int) -> float:
    """Mean over steps, without their allreduce, of the slowest rank's seconds in each step.

    The slowest rank counts because all ranks would wait for it in the allreduce. The ranks start each step together, as
    the allreduce would make them do.
    """
    seconds = []
    for _ in range(times):
        comm.Barrier()
        start = time.perf_counter()
        step(False)
        seconds.append(time.perf_counter() - start)
    return float(np.max(comm.allgather(seconds), axis=0).mean())


def _step(backend: Mpi, data: mnist.Split, width: int, batch: int) -> tuple[Callable[[bool], None], int]:
    """A step of one network, with its allreduce if called with True, and the network's number of parameters."""
    torch.manual_seed(0)
    model = perceptron(width).to(backend.device)
    _, optimizer = backend.wrap(model, lambda parameters: torch.optim.SGD(parameters, LR, momentum=0.9, fused=True))
    chosen = np.random.default_rng(backend.world.rank).integers(0, data.total, batch)
    images = torch.tensor(data.images[chosen], device=backend.device)
    labels = torch.tensor(data.labels[chosen], device=backend.device).long()

    def step(average: bool) -> None:
        model.zero_grad(set_to_none=False)
        cross_entropy(model(torch_cnn.normalize(images)), labels).backward()
        if average:
            backend.average_gradients()
        else:
            backend.flat.div_(backend.world.world_size)  # the division that averaging adds to its sum
        optimizer.step()
        wait_for(backend.device)

    return step, sum(each.numel() for each in model.parameters())


def main(arguments: list[str]) -> None:
    environment.clean()
    most_bytes = int(arguments[0]) if arguments else max(SIZES_BYTES)
    rows = communication([nbytes for nbytes in SIZES_BYTES if nbytes <= most_bytes])
    if MPI.COMM_WORLD.rank > 0:
        return
    print(f"{rows[-1]['ranks']} ranks; median, least and most of {len(rows[-1]['seconds'])} rounds")
    print(f"{'':>18} {'bytes':>11} {'us':>11} {'least':>11} {'most':>11} {'bus GB/s':>10}")
    for row in rows:
        microseconds = " ".join(f"{1e6 * row[name]:>11,.2f}" for name in ("median_s", "min_s", "max_s"))
        bandwidth = row["bus_bytes_per_s"] / 1e9
        print(f"{row['way']:>18} {row['message_bytes']:>11,} {microseconds} {bandwidth:>10.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
