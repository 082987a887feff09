"""Four ways for ranks to train one model by SGD, from always waiting for each other to never waiting.

07e_waiting_less compares them while one worker is late. No wait in this file is unlimited: `wait` and `Meanwhile`
raise WaitTimeout.

All four take the same function `gradient(weights, step)`. It returns the gradient [n] of this rank's batch number
`step` (from 0) at `weights` [n], as a new array. The four differ in *staleness*: how many updates were missing from the
weights at which a gradient was computed, by the time it is applied. All ranks start with equal weights, and the array
that the caller passes is not changed.

    synchronous  every rank waits for all ranks in each step                       staleness 0
    lag_sync     gradients are applied one step late, and travel while
                 the next gradients are computed (Kurth et al. 2018)               staleness 1
    local_sgd    ranks step alone, and average weights every `period` steps
                 (Stich 2019, arXiv:1805.09767)                                    staleness 0 to period - 1
    asynchronous a server applies each gradient as it arrives, and sends new
                 weights to that gradient's worker alone (Dean et al. 2012)        staleness varies
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

from workshop_lib.course.solutions import Solution
from workshop_lib.errors import InputError, WorkshopError

Gradient = Callable[[np.ndarray, int], np.ndarray]
SERVER = 0
OTHERS = "the other ranks in an allreduce"
# Message tags of the asynchronous mode.
GRADIENT = 1
WEIGHTS = 2
LAST = 3
LIMIT_S = 30.0
RUN_LIMIT_S = 120.0  # rank 0 waits this long for the workers' whole training
PERIOD = 10  # steps of local SGD between two averages
SERVER_NAP_S = 1e-4  # sleep between polls, so that the server does not take a core from a worker
THREAD_NAP_S = 5e-4  # sleep between polls in the thread that keeps messages moving


class WaitTimeout(WorkshopError, TimeoutError):
    """The error raised when another rank does not do its part of a message within the limit."""

    def __init__(self, what: str, limit_s: float):
        super().__init__(
            f"rank {MPI.COMM_WORLD.rank} waited {limit_s:g} s for {what}: another rank is slow, stuck or gone; "
            "restart the ranks, or allow more time with limit_s"
        )


def wait(request: MPI.Request, what: str, limit_s: float = LIMIT_S, nap_s: float = 0.0) -> MPI.Status:
    """Block until `request` is complete; return its status.

    nap_s: seconds to sleep between polls, for a rank that has nothing else to do and should leave its core to busy
    ranks. With 0, it yields only to a process that is waiting for the core.
    Raises WaitTimeout, which names `what`, if the request is not complete within limit_s seconds. MPI may still write
    into the request's buffer after that, so the ranks have to be restarted.
    """
    status = MPI.Status()
    end = time.monotonic() + limit_s
    while not request.Test(status):
        if time.monotonic() > end:
            raise WaitTimeout(what, limit_s)
        time.sleep(nap_s)
    return status


class Meanwhile:
    """A thread that polls `request` every half millisecond, so that it proceeds while this rank computes.

    MPI moves messages only inside its own calls. Without the thread, a collective of more than one round stands still
    while any of its ranks computes.
    """

    def __init__(self, request: MPI.Request):
        self.request = request
        self.done = False
        self.error: Exception | None = None
        self.end_s: float | None = None
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self) -> None:
        try:
            self._poll()
        except Exception as error:  # for example, a message that is larger than its array
            self.error = error

    def _poll(self) -> None:
        while not self.request.Test():
            if self.end_s is None:
                time.sleep(THREAD_NAP_S)
            elif time.monotonic() > self.end_s:
                return
            else:
                time.sleep(0)  # the rank is waiting for the request now
        self.done = True

    def wait(self, what: str, limit_s: float = LIMIT_S) -> None:
        """Block until the request is complete. Raises MPI's error, or WaitTimeout as the function `wait` does."""
        self.end_s = time.monotonic() + limit_s
        self.thread.join()
        if self.error is not None:
            raise self.error
        if not self.done:
            raise WaitTimeout(what, limit_s)


class Average:
    """The average of an array over the ranks, while it is on its way and once it has arrived.

    All ranks create it, which blocks no rank. It does one Iallreduce of the array's n numbers.
    """

    def __init__(self, comm, array: np.ndarray, limit_s: float = LIMIT_S):
        self.total = array.copy()
        self.size = comm.size
        self.limit_s = limit_s
        self.arrived = False
        self.traveling = Meanwhile(comm.Iallreduce(MPI.IN_PLACE, self.total))

    def wait(self) -> np.ndarray:
        """Block until the average has arrived, and return it. Raises WaitTimeout after limit_s seconds."""
        self.traveling.wait(OTHERS, self.limit_s)
        self.arrived = True
        return self.total / self.size


@dataclass
class StalenessRun:
    """The result of a training, on one rank.

    weights: the final weights, equal on all ranks. seconds: from the common start to the end on this rank. read: for
    each update, in order, how many updates the weights already contained when its gradient was computed. workers: on
    the server of an asynchronous run, the rank that computed each update's gradient. computing: for each rank, when it
    began and ended each of its gradients, in seconds since a common start; only `by_name` measures this.
    """

    weights: np.ndarray
    seconds: float = 0.0
    read: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    computing: list[list[tuple[float, float]]] = field(default_factory=list)

    @property
    def staleness(self) -> list[int]:
        """For each update, how many updates were missing from the weights at which its gradient was computed."""
        return [update - read for update, read in enumerate(self.read)]


def synchronous(comm, weights, gradient: Gradient, lr: float, steps: int, limit_s: float = LIMIT_S) -> StalenessRun:
    """Train by plain synchronous SGD.

    Each step does one allreduce of n numbers, which no rank leaves before the last rank has arrived. All ranks call
    this function, and it blocks, for at most limit_s seconds per step (WaitTimeout).
    """
    run = StalenessRun(weights.copy())
    start = _start(comm, limit_s)
    for step in range(steps):
        run.read.append(step)
        run.weights -= lr * _mean(comm, gradient(run.weights, step), limit_s)
    run.seconds = time.perf_counter() - start
    return run


def lag_sync(
    comm,
    weights,
    gradient: Gradient,
    lr: float,
    steps: int,
    limit_s: float = LIMIT_S,
    train: Callable[..., np.ndarray] | None = None,
) -> StalenessRun:
    """Train by SGD with gradients that are applied one step late ("gradient lag", Kurth et al. 2018, arXiv:1810.01993).

    train: a function like `one_step_late` of 07e, by default its solution. Each step starts one Iallreduce of n
    numbers, which has until the next gradient is computed, so a rank that is late once holds nobody up. A thread keeps
    the Iallreduce moving meanwhile, so MPI must allow threads (MPI_THREAD_MULTIPLE, which mpi4py requests). All ranks
    call this function, and it blocks, for at most limit_s seconds per step (WaitTimeout).
    """
    run = StalenessRun(weights.copy())
    averages: list[Average] = []

    def start_average(array: np.ndarray) -> Average:
        averages.append(Average(comm, array, limit_s))
        return averages[-1]

    def noted(weights: np.ndarray, step: int) -> np.ndarray:
        run.read.append(sum(average.arrived for average in averages))
        return gradient(weights, step)

    if train is None:
        train = Solution("07e_waiting_less", "one_step_late").load()
    start = _start(comm, limit_s)
    run.weights = train(start_average, noted, run.weights, lr, steps)
    run.seconds = time.perf_counter() - start
    return run


def local_sgd(
    comm, weights, gradient: Gradient, lr: float, steps: int, period: int = PERIOD, limit_s: float = LIMIT_S
) -> StalenessRun:
    """Train by local SGD: each rank steps with its own gradient, and weights are averaged after every `period` steps.

    The weights are also averaged after the last step. Each averaging is one allreduce of n numbers. Between two of
    them, a rank lacks all updates of the other ranks, and its staleness is the number of its own steps since the last
    one. All ranks call this function, and it blocks, for at most limit_s seconds per averaging (WaitTimeout). Raises
    InputError for a period below 1.
    """
    if period < 1:
        raise InputError(f"period {period}: average the weights every 1 or more steps")
    run = StalenessRun(weights.copy())
    start = _start(comm, limit_s)
    for step in range(steps):
        run.read.append(step - step % period)
        run.weights -= lr * gradient(run.weights, step)
        if (step + 1) % period == 0 or step + 1 == steps:
            run.weights = _mean(comm, run.weights, limit_s)
    run.seconds = time.perf_counter() - start
    return run


def asynchronous(comm, weights, gradient: Gradient, lr: float, updates: int, limit_s: float = LIMIT_S) -> StalenessRun:
    """Train with a parameter server: rank 0 applies `updates` gradients as they arrive; the other ranks compute them.

    A worker receives the newest weights, computes a gradient, sends it, and waits for weights again: two messages of n
    numbers per update. An update uses the batch of one worker. So with p workers, a rate of lr / p moves the weights as
    far, for the same number of samples, as synchronous SGD does at lr. Only the server knows `read` and `workers`.
    All ranks call this function, and it blocks, for at most limit_s seconds per message (WaitTimeout).
    Raises InputError if there is only one rank.
    """
    if comm.size < 2:
        raise InputError("1 rank: a parameter server needs one more to work for it; start 2 or more ranks")
    run = StalenessRun(weights.copy())
    start = _start(comm, limit_s)
    if comm.rank == SERVER:
        _serve(comm, run, lr, updates, limit_s)
    else:
        _work(comm, run, gradient, limit_s)
    run.seconds = time.perf_counter() - start
    return run


def by_name(mode: str, comm, weights, gradient: Gradient, lr: float, steps: int, **options) -> StalenessRun:
    """Train for `steps` global steps with ranks 1, 2, … as workers. mode: the name of one of the four functions above.

    Rank 0 is the server of an asynchronous run, which uses a rate of lr / p and does one update per worker and step. In
    the other modes rank 0 sleeps. options: `period` of local_sgd, by default PERIOD, and `train` of lag_sync. All ranks
    call this function, it blocks, and every rank gets the same weights, staleness and times of computing.
    """
    computing: list[tuple[float, float]] = []

    def timed(weights: np.ndarray, step: int) -> np.ndarray:
        begin_s = time.perf_counter() - start
        computed = gradient(weights, step)
        computing.append((begin_s, time.perf_counter() - start))
        return computed

    server = comm.rank == SERVER
    workers = comm.size - 1
    run = StalenessRun(weights)
    start = _start(comm, LIMIT_S)
    if mode == "asynchronous":
        run = asynchronous(comm, weights, timed, lr / workers, steps * workers)
    else:
        of_workers = comm.Split(color=int(server), key=comm.rank)  # rank 0 gets a communicator of its own
        if not server:
            run = MODES[mode](of_workers, weights, timed, lr, steps, **options)
        of_workers.Free()
    wait(comm.Ibarrier(), "the end of the run", RUN_LIMIT_S, nap_s=0.005)  # a rank that has nothing to do sleeps
    run = comm.bcast(run, root=SERVER if mode == "asynchronous" else 1)
    run.computing = comm.allgather(computing)
    return run


MODES: dict[str, Callable[..., StalenessRun]] = {
    "synchronous": synchronous,
    "lag_sync": lag_sync,
    "local_sgd": local_sgd,
}


def _serve(comm, run: StalenessRun, lr: float, updates: int, limit_s: float) -> None:
    arriving = np.empty_like(run.weights)
    given = {}

    def send(worker: int, tag: int) -> None:
        request = comm.Isend(run.weights, worker, tag)
        wait(request, f"rank {worker} to take its weights", limit_s)

    for worker in range(1, min(comm.size, updates + 1)):
        given[worker] = 0
        send(worker, WEIGHTS)
    for update in range(updates):
        request = comm.Irecv(arriving, MPI.ANY_SOURCE, GRADIENT)
        worker = wait(request, "a gradient from any worker", limit_s, SERVER_NAP_S).Get_source()
        run.read.append(given.pop(worker))
        run.workers.append(worker)
        run.weights -= lr * arriving
        if update + 1 + len(given) < updates:  # otherwise enough gradients are under way
            given[worker] = update + 1
            send(worker, WEIGHTS)
    for worker in range(1, comm.size):
        send(worker, LAST)


def _work(comm, run: StalenessRun, gradient: Gradient, limit_s: float) -> None:
    step = 0
    while True:
        request = comm.Irecv(run.weights, SERVER)
        if wait(request, "weights from the server", limit_s, SERVER_NAP_S).Get_tag() == LAST:
            return
        request = comm.Isend(gradient(run.weights, step), SERVER, GRADIENT)
        wait(request, "the server to take a gradient", limit_s)
        step += 1


def _start(comm, limit_s: float) -> float:
    """Wait until all ranks have arrived; return the time of this moment."""
    wait(comm.Ibarrier(), "all ranks to begin", limit_s)
    return time.perf_counter()


def _mean(comm, array: np.ndarray, limit_s: float) -> np.ndarray:
    """Replace `array` by its mean over the ranks, and return it."""
    wait(comm.Iallreduce(MPI.IN_PLACE, array), OTHERS, limit_s)
    array /= comm.size
    return array
