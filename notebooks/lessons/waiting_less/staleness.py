"""Three ways for ranks to train one model by SGD, from always waiting for each other to never waiting.

07e_waiting_less compares them while one worker is late. All three take the same function `gradient(weights, step)`,
which returns the gradient [n] of this rank's batch number `step` (from 0) at `weights` [n], as a new array. They differ
in *staleness*: how many updates were missing from the weights at which a gradient was computed, when it is applied.

    synchronous  every rank waits for all ranks in each step                       staleness 0
    lag_sync     gradients are applied one step late, and travel while
                 the next gradients are computed (Kurth et al. 2018)               staleness 1
    asynchronous a server applies each gradient as it arrives, and sends new
                 weights to that gradient's worker alone (Dean et al. 2012)        staleness varies

All ranks of `comm` call them, and they block. The time limit of the call on the ranks ends what waits forever.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

Gradient = Callable[[np.ndarray, int], np.ndarray]
SERVER = 0
GRADIENT, WEIGHTS, LAST = 1, 2, 3  # message tags of the asynchronous mode
NAP_S = 1e-4  # sleep between polls, so that a waiting rank leaves its core to busy ones


@dataclass
class StalenessRun:
    """The result of a training run, on one rank.

    weights: the final weights, equal on all ranks. read: for each update, in order, how many updates the weights
    already contained when its gradient was computed. seconds, and computing, the times at which each rank began and
    ended each gradient, count from a common start: only `by_name` measures these.
    """

    weights: np.ndarray
    read: list[int] = field(default_factory=list)
    seconds: float = 0.0
    computing: list[list[tuple[float, float]]] = field(default_factory=list)

    @property
    def staleness(self) -> list[int]:
        """For each update, how many updates were missing from the weights at which its gradient was computed."""
        return [update - read for update, read in enumerate(self.read)]


def synchronous(comm, weights, gradient: Gradient, lr: float, steps: int) -> StalenessRun:
    """Train by plain synchronous SGD: each step does one allreduce of n numbers."""
    run = StalenessRun(weights.copy(), list(range(steps)))
    for step in range(steps):
        total = gradient(run.weights, step)
        complete(comm.Iallreduce(MPI.IN_PLACE, total))
        run.weights -= lr * total / comm.size
    return run


class Average:
    """The average of an array over the ranks, on its way: one Iallreduce of n numbers, which no rank waits for yet.

    MPI moves messages only inside its own calls, so a helper's thread polls while this rank computes.
    """

    def __init__(self, comm, array: np.ndarray, helper: ThreadPoolExecutor):
        self.total = array.copy()
        self.size = comm.size
        self.arrived = False
        self.traveling = helper.submit(complete, comm.Iallreduce(MPI.IN_PLACE, self.total))

    def wait(self) -> np.ndarray:
        """Block until the average has arrived, and return it."""
        self.traveling.result()
        self.arrived = True
        return self.total / self.size


def lag_sync(comm, weights, gradient: Gradient, lr: float, steps: int, train: Callable) -> StalenessRun:
    """Train with gradients that are applied one step late ("gradient lag", Kurth et al. 2018, arXiv:1810.01993).

    train: a function like `one_step_late` of 07e. Each step starts one Iallreduce of n numbers, which has until the
    next gradient is computed. MPI must allow threads (MPI_THREAD_MULTIPLE, which mpi4py requests).
    """
    run = StalenessRun(weights.copy())
    averages: list[Average] = []

    def noted(weights: np.ndarray, step: int) -> np.ndarray:
        run.read.append(sum(average.arrived for average in averages))
        return gradient(weights, step)

    with ThreadPoolExecutor(max_workers=1) as helper:

        def start_average(array: np.ndarray) -> Average:
            averages.append(Average(comm, array, helper))
            return averages[-1]

        run.weights = train(start_average, noted, run.weights, lr, steps)
    return run


def asynchronous(comm, weights, gradient: Gradient, lr: float, updates: int) -> StalenessRun:
    """Train with a parameter server: rank 0 applies `updates` gradients as they arrive; the other ranks compute them.

    A worker receives the newest weights, computes a gradient, sends it, and waits for weights again: two messages of n
    numbers per update. Only the server knows `read`.
    """
    run = StalenessRun(weights.copy())
    if comm.rank == SERVER:
        _serve(comm, run, lr, updates)
        return run
    step = 0
    while complete(comm.Irecv(run.weights, SERVER)).Get_tag() == WEIGHTS:
        comm.Send(gradient(run.weights, step), SERVER, GRADIENT)
        step += 1
    return run


def _serve(comm, run: StalenessRun, lr: float, updates: int) -> None:
    arriving = np.empty_like(run.weights)
    given = dict.fromkeys(range(1, min(comm.size, updates + 1)), 0)
    for worker in given:
        comm.Send(run.weights, worker, WEIGHTS)
    for update in range(updates):
        worker = complete(comm.Irecv(arriving, MPI.ANY_SOURCE, GRADIENT)).Get_source()
        run.read.append(given.pop(worker))
        run.weights -= lr * arriving
        if update + 1 + len(given) < updates:  # otherwise enough gradients are under way
            given[worker] = update + 1
            comm.Send(run.weights, worker, WEIGHTS)
    for worker in range(1, comm.size):
        comm.Send(run.weights, worker, LAST)


def by_name(mode: str, comm, weights, gradient: Gradient, lr: float, steps: int, **options) -> StalenessRun:
    """Train for `steps` global steps with ranks 1, 2, … as workers. mode: the name of one of the three functions above.

    Rank 0 is the server of an asynchronous run, which uses a rate of lr / p and does one update per worker and step, so
    that p workers move the weights as far per sample as in the other modes. There, rank 0 sleeps. options: `train` of
    lag_sync. Every rank gets the same weights, staleness and times of computing.
    """
    computing: list[tuple[float, float]] = []

    def timed(weights: np.ndarray, step: int) -> np.ndarray:
        begin_s = time.perf_counter() - start
        computed = gradient(weights, step)
        computing.append((begin_s, time.perf_counter() - start))
        return computed

    server = comm.rank == SERVER
    workers = comm.size - 1
    of_workers = comm.Split(color=int(server), key=comm.rank)  # rank 0 gets a communicator of its own
    run = StalenessRun(weights)
    complete(comm.Ibarrier())
    start = time.perf_counter()
    if mode == "asynchronous":
        run = asynchronous(comm, weights, timed, lr / workers, steps * workers)
    elif not server:
        modes: dict[str, Callable] = {"synchronous": synchronous, "lag_sync": lag_sync}
        run = modes[mode](of_workers, weights, timed, lr, steps, **options)
    run.seconds = time.perf_counter() - start
    of_workers.Free()
    complete(comm.Ibarrier())
    run = comm.bcast(run, root=SERVER if mode == "asynchronous" else 1)
    run.computing = comm.allgather(computing)
    return run


def complete(request: MPI.Request) -> MPI.Status:
    """Block until the request is complete, and leave the core to other ranks meanwhile."""
    status = MPI.Status()
    while not request.Test(status):
        time.sleep(NAP_S)
    return status
