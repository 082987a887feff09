"""Measures how long messages and allreduces take, in the style of the OSU micro-benchmarks and nccl-tests.

08c_forecasting fits its model of communication to these times. Each call is checked once and warmed up. In each of the
following rounds, every way takes its turn, so that a slow moment of the machine affects all ways. A turn makes as many
calls as fit into ROUND_S, between two readings of the clock, and the slowest rank's time counts. All ranks call
everything here together, and it blocks.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import TypedDict

import numpy as np
from mpi4py import MPI

from workshop_lib.errors import InputError, WorkshopError
from workshop_lib.lessons.forecasting.allreduce import ALGORITHMS

SIZES_BYTES = tuple(4**k for k in range(1, 14))  # 4 B to 64 MiB
REPEATS = 7
ROUND_S = 0.01
WARM_UP = 3
MOST_CALLS = 200

# A way takes a float32 array [n], and returns a call that sums the array over the ranks and one that returns the sum.
Way = Callable[[np.ndarray], tuple[Callable[[], None], Callable[[], np.ndarray]]]


class MessageRow(TypedDict):
    """Measurements of one way and message size: seconds per call in each round, their median and range, and bandwidths.

    The algorithm bandwidth is the message's bytes divided by the median of the seconds. The bus bandwidth is
    2 (p - 1)/p times that: it is what a link carries with the best possible algorithm, so it can be compared between
    numbers of ranks (nccl-tests, PERFORMANCE.md). For a ping-pong, both bandwidths are the same.
    """

    way: str
    ranks: int
    message_bytes: int
    seconds: list[float]
    median_s: float
    min_s: float
    max_s: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float


def in_place(allreduce: Callable[[np.ndarray], None]) -> Way:
    """The way of a function that replaces an array by its sum over the ranks."""
    return lambda array: (lambda: allreduce(array), lambda: array)


def process_group(device) -> Way:
    """The way of PyTorch's allreduce over this rank's process group: gloo on CPUs; on GPUs, in their memory."""
    import torch
    import torch.distributed as dist

    def on(array: np.ndarray):
        tensor = torch.from_numpy(array).to(device)  # on a CPU, the tensor shares the array's memory

        def call() -> None:
            dist.all_reduce(tensor)
            wait_for(device)

        return call, lambda: tensor.cpu().numpy()

    return on


def wait_for(device) -> None:
    """Block until a GPU has done what was asked of it. On a CPU, it has been done already."""
    import torch

    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def ways(comm, device=None) -> dict[str, Way]:
    """All ways by name: the MPI library's, those of allreduce.py and, with a torch `device`, the process group's."""
    every = {"MPI": in_place(lambda array: comm.Allreduce(MPI.IN_PLACE, array, MPI.SUM))}
    if device is not None:
        import torch.distributed as dist

        every[dist.get_backend()] = process_group(device)
    return every | {name: in_place(partial(algorithm, comm)) for name, algorithm in ALGORITHMS.items()}


def allreduces(
    comm, ways: dict[str, Way], sizes_bytes: Iterable[int] = SIZES_BYTES, repeats: int = REPEATS
) -> list[MessageRow]:
    """Time an allreduce of each size in each of these `ways`. Sizes are in bytes, and multiples of 4, for float32.

    Returns one row per size and way, on every rank. Raises WorkshopError, on every rank, when a way's sum is wrong on
    some rank, and InputError for a size that is not a multiple of 4.
    """
    rows = []
    for nbytes in sizes_bytes:
        if nbytes < 4 or nbytes % 4:
            raise InputError(f"a message of {nbytes} bytes: give a multiple of 4, the bytes of a float32.")
        array = np.empty(nbytes // 4, np.float32)
        calls = {name: _checked(comm, name, way, array) for name, way in ways.items()}
        array[:] = 0  # zeros stay 0 however often they are summed
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
        algorithm_bytes_per_s=message_bytes / middle,
        bus_bytes_per_s=2 * (ranks - 1) / ranks * message_bytes / middle,
    )


def timed(comm, calls: dict[str, Callable[[], None]], repeats: int = REPEATS) -> dict[str, list[float]]:
    """Seconds per call on the slowest rank: one value per round, for each of these calls."""
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; it must be at least 1.")
    times = {name: _warmed_up(comm, call) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(_call_s(comm, call, times[name]))
            # If a rank has to wait for a core, calls are far slower than the warm-up promised: make fewer per round.
            times[name] = min(times[name], _fitting(10 * ROUND_S, seconds[name][-1]))
    return seconds


def _warmed_up(comm, call: Callable[[], None]) -> int:
    """Make a few calls; return how many fit into ROUND_S, judged by the last one. All ranks get the same number."""
    for _ in range(WARM_UP):
        took_s = _call_s(comm, call)
    return min(_fitting(ROUND_S, took_s), MOST_CALLS)


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


def _checked(comm, name: str, way: Way, array: np.ndarray) -> Callable[[], None]:
    """The way's call on this array, after a first call to check its sum. Raises WorkshopError if a rank's is wrong."""
    values = np.arange(len(array), dtype=np.float32) % 251  # whole numbers: every sum is exact
    array[:] = values + comm.rank
    call, result = way(array)
    call()
    right = np.array_equal(result(), comm.size * values + sum(range(comm.size)))
    wrong = [rank for rank, fine in enumerate(comm.allgather(right)) if not fine]
    if wrong:
        raise WorkshopError(
            f"the sum of {len(array):,} values by {name} is wrong on rank {', '.join(map(str, wrong))}."
        )
    return call
