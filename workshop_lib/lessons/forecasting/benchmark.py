"""How long messages and allreduces take, measured in the manner of the OSU micro-benchmarks and nccl-tests.

Each call is checked once and warmed up. Then come rounds in which every way has its turn, so that a slow
moment of the machine touches all of them. In a round a way is called as often as fits into ROUND_S, between
two looks at the clock, and the slowest rank's time counts. All ranks call everything here together; it blocks.
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

# For an array [n] of float32: the call that sums it over ranks, in place, and what then shows the sum.
Way = Callable[[np.ndarray], tuple[Callable[[], None], Callable[[], np.ndarray]]]


class MessageRow(TypedDict):
    """What was measured of one way and size: seconds per call in each round, their median and range, and two
    bandwidths in bytes/s.

    The algorithm bandwidth is bytes over seconds. The bus bandwidth is 2 (p - 1)/p times that: what a link
    carries in the best of algorithms, so comparable between numbers of ranks (nccl-tests, PERFORMANCE.md).
    For a ping-pong both are the same.
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
    """That of a function that replaces an array by its sum."""
    return lambda array: (lambda: allreduce(array), lambda: array)


def process_group(device) -> Way:
    """PyTorch's, over this rank's process group: gloo on CPUs; NCCL on GPUs, in their memory."""
    import torch
    import torch.distributed as dist

    def on(array: np.ndarray):
        tensor = torch.from_numpy(array).to(device)  # the array itself on a CPU

        def call() -> None:
            dist.all_reduce(tensor)
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return call, lambda: tensor.cpu().numpy()

    return on


def ways(comm, device=None) -> dict[str, Way]:
    """All there are, by name: the MPI library's own, those in allreduce.py, and with a torch `device` that of
    this rank's process group (gloo, nccl)."""
    every = {"MPI": in_place(lambda array: comm.Allreduce(MPI.IN_PLACE, array, MPI.SUM))}
    if device is not None:
        import torch.distributed as dist

        every[dist.get_backend()] = process_group(device)
    return every | {name: in_place(partial(algorithm, comm)) for name, algorithm in ALGORITHMS.items()}


def allreduces(
    comm, ways: dict[str, Way], sizes_bytes: Iterable[int] = SIZES_BYTES, repeats: int = REPEATS
) -> list[MessageRow]:
    """Time an allreduce of each size (in bytes, a multiple of 4: float32) in each of these `ways`.

    Returns on every rank a row for each size and way. Raises WorkshopError, on every rank, when a way's sum is
    wrong on some rank, and InputError for a size that is not a whole number of float32.
    """
    rows = []
    for nbytes in sizes_bytes:
        if nbytes < 4 or nbytes % 4:
            raise InputError(f"a message of {nbytes} bytes: give a multiple of 4, the bytes of a float32.")
        array = np.empty(nbytes // 4, np.float32)
        calls = {name: _checked(comm, name, way, array) for name, way in ways.items()}
        array[:] = 0  # it stays 0 however often it is summed
        for name, seconds in timed(comm, calls, repeats).items():
            rows.append(row(name, comm.size, nbytes, seconds))
    return rows


def ping_pong(comm, sizes_bytes: Iterable[int] = SIZES_BYTES, repeats: int = REPEATS) -> list[MessageRow]:
    """Time a message of each size between ranks 0 and 1: half of the time there and back.

    Returns on every rank a row for each size. Raises InputError when there is only one rank.
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
        ball = np.ones(nbytes, np.uint8)  # written to, so that its memory is really there
        seconds = timed(comm, {"": partial(there_and_back, ball)}, repeats)[""]
        rows.append(row("ping-pong", 2, nbytes, [s / 2 for s in seconds]))
    return rows


def row(way: str, ranks: int, message_bytes: int, seconds: list[float]) -> MessageRow:
    """The row of these rounds' seconds."""
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
    """Seconds of one call on the slowest rank, in each of `repeats` rounds, for each of these calls."""
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; it must be at least 1.")
    times = {name: _warmed_up(comm, call) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(_call_s(comm, call, times[name]))
            # A rank that has to wait for a core makes calls far slower than the warm-up promised.
            times[name] = min(times[name], _fitting(10 * ROUND_S, seconds[name][-1]))
    return seconds


def _warmed_up(comm, call: Callable[[], None]) -> int:
    """Call it a few times; how often it fits into ROUND_S, by the last of them, the same on every rank."""
    for _ in range(WARM_UP):
        took_s = _call_s(comm, call)
    return min(_fitting(ROUND_S, took_s), MOST_CALLS)


def _call_s(comm, call: Callable[[], None], times: int = 1) -> float:
    """Seconds of one of these calls, on the slowest rank."""
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(times):
        call()
    return comm.allreduce(time.perf_counter() - start, MPI.MAX) / times


def _fitting(limit_s: float, call_s: float) -> int:
    """How many calls fit into this time; one at least."""
    return max(1, round(limit_s / call_s))


def _checked(comm, name: str, way: Way, array: np.ndarray) -> Callable[[], None]:
    """The way's call on this array, after a first one whose sum is right on all ranks."""
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
