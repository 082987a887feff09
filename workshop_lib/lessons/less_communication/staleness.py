"""Four ways in which ranks train one model by SGD, from never waiting to always waiting for each other.

No wait here is unlimited: `wait` and `Meanwhile` raise WaitTimeout.

Each takes the same `gradient(weights, step)`: the gradient [n] of this rank's batch number `step` (0-based)
at `weights` [n], as a new array. They differ in *staleness*: how many updates the weights of a gradient lacked
when it was applied. Weights begin equal on all ranks, and are not changed in place.

    synchronous  every rank waits for all in each step                             staleness 0
    lag_sync     the gradients of a step are applied a step later, and travel
                 while the next ones are computed (Kurth et al. 2018)              staleness 1
    local_sgd    ranks step alone, and average weights every `period` steps
                 (Stich 2019, arXiv:1805.09767)                                    staleness 0 to period - 1
    asynchronous a server applies each gradient as it comes, and sends weights
                 back to that worker alone (Dean et al. 2012)                      as it happens
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

from workshop_lib.errors import InputError, WorkshopError

Gradient = Callable[[np.ndarray, int], np.ndarray]
SERVER = 0
OTHERS = "the other ranks in an allreduce"
GRADIENT, WEIGHTS, LAST = 1, 2, 3  # tags of the asynchronous messages
LIMIT_S = 30.0
SERVER_NAP_S = 1e-4  # between looks: the server must not take a core from a worker
THREAD_NAP_S = 5e-4  # of the thread that keeps messages moving


class WaitTimeout(WorkshopError, TimeoutError):
    """Another rank did not do its part of a message within the limit."""

    def __init__(self, what: str, limit_s: float):
        super().__init__(
            f"rank {MPI.COMM_WORLD.rank} waited {limit_s:g} s for {what}: another rank is slow, stuck or gone; "
            "restart the ranks, or allow more time with limit_s"
        )


def wait(request: MPI.Request, what: str, limit_s: float = LIMIT_S, nap_s: float = 0.0) -> MPI.Status:
    """Block until `request` is complete; returns its status.

    nap_s: seconds to sleep between looks, for a rank that has nothing else to do and should leave its core to
    the ranks that have. At 0 it only gives way to a process that waits for the core.
    Raises WaitTimeout saying `what` did not come within limit_s seconds. MPI may then still write into the
    request's buffer, so the ranks have to be restarted.
    """
    status, end = MPI.Status(), time.monotonic() + limit_s
    while not request.Test(status):
        if time.monotonic() > end:
            raise WaitTimeout(what, limit_s)
        time.sleep(nap_s)
    return status


class Meanwhile:
    """Lets `request` proceed while this rank computes, in a thread that looks at it every half millisecond.

    MPI moves messages only inside its own calls. Without the thread, a collective of more than one round
    stands still while any of its ranks computes.
    """

    def __init__(self, request: MPI.Request):
        self.request, self.done = request, False
        self.end_s: float | None = None
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self) -> None:
        while not self.request.Test():
            if self.end_s is None:
                time.sleep(THREAD_NAP_S)
            elif time.monotonic() > self.end_s:
                return
            else:
                time.sleep(0)  # the rank waits for it now
        self.done = True

    def wait(self, what: str, limit_s: float = LIMIT_S) -> None:
        """Block until the request is complete; raises WaitTimeout as the function `wait` does."""
        self.end_s = time.monotonic() + limit_s
        self.thread.join()
        if not self.done:
            raise WaitTimeout(what, limit_s)


@dataclass
class Run:
    """What a training came to, on one rank.

    weights: the final ones, the same on all ranks. seconds: from the common start to this rank's end. read:
    for each update, in order, how many updates had gone into the weights its gradient was computed with.
    workers: in an asynchronous run, on the server, the rank behind each update.
    """

    weights: np.ndarray
    seconds: float = 0.0
    read: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)

    @property
    def staleness(self) -> dict[int, int]:
        """{staleness: number of updates}, ascending."""
        counts = Counter(update - read for update, read in enumerate(self.read))
        return dict(sorted(counts.items()))


def synchronous(comm, weights, gradient: Gradient, lr: float, steps: int, limit_s: float = LIMIT_S) -> Run:
    """Plain synchronous SGD: an allreduce of n numbers in each step, which no rank leaves before the last
    has come. All ranks call it, and it blocks, at most limit_s seconds in a step (WaitTimeout)."""
    run, start = Run(weights.copy()), _start(comm, limit_s)
    for step in range(steps):
        run.read.append(step)
        run.weights -= lr * _mean(comm, gradient(run.weights, step), limit_s)
    run.seconds = time.perf_counter() - start
    return run


def lag_sync(comm, weights, gradient: Gradient, lr: float, steps: int, limit_s: float = LIMIT_S) -> Run:
    """Gradients one step late (Kurth et al. 2018, arXiv:1810.01993: "gradient lag").

    w[t+1] = w[t] - lr * mean over ranks of the gradient of batch t at w[t-1]; the first is at w[0].
    One Iallreduce of n numbers a step, which has until the next gradient is computed: a rank that is late
    once holds nobody up. A thread keeps it moving meanwhile, so MPI must allow threads (MPI_THREAD_MULTIPLE,
    which mpi4py asks for). All ranks call it; it blocks, at most limit_s seconds in a step (WaitTimeout).
    """
    run, start = Run(weights.copy()), _start(comm, limit_s)
    total = travelling = None

    def arrive() -> None:
        if travelling is not None:
            travelling.wait(OTHERS, limit_s)
            run.weights -= lr / comm.size * total

    for step in range(steps):
        run.read.append(max(step - 1, 0))
        new = gradient(run.weights, step)
        arrive()
        total, travelling = new, Meanwhile(comm.Iallreduce(MPI.IN_PLACE, new))
    arrive()
    run.seconds = time.perf_counter() - start
    return run


def local_sgd(comm, weights, gradient: Gradient, lr: float, steps: int, period: int, limit_s: float = LIMIT_S) -> Run:
    """Each rank steps with its own gradient; weights are averaged after every `period` steps and the last.

    One allreduce of n numbers in `period` steps. Between two of them a rank lacks all updates of the others:
    its staleness is its own steps since the last. All ranks call it, and it blocks, at most limit_s seconds
    at an averaging (WaitTimeout). Raises InputError for a period below 1.
    """
    if period < 1:
        raise InputError(f"period {period}: average the weights every 1 or more steps")
    run, start = Run(weights.copy()), _start(comm, limit_s)
    for step in range(steps):
        run.read.append(step - step % period)
        run.weights -= lr * gradient(run.weights, step)
        if (step + 1) % period == 0 or step + 1 == steps:
            run.weights = _mean(comm, run.weights, limit_s)
    run.seconds = time.perf_counter() - start
    return run


def asynchronous(comm, weights, gradient: Gradient, lr: float, updates: int, limit_s: float = LIMIT_S) -> Run:
    """A parameter server: rank 0 applies `updates` gradients, each as it comes; all other ranks compute them.

    A worker gets the newest weights, computes a gradient, sends it, and waits for weights again: two messages
    of n numbers an update. An update is of one worker's batch: with p workers, lr / p moves the weights as
    far for as many samples as synchronous SGD does. `read` and `workers` are known to the server alone.
    All ranks call it, and it blocks, at most limit_s seconds for a message (WaitTimeout).
    Raises InputError on one rank.
    """
    if comm.size < 2:
        raise InputError("1 rank: a parameter server needs one more to work for it; start 2 or more ranks")
    run, start = Run(weights.copy()), _start(comm, limit_s)
    if comm.rank == SERVER:
        _serve(comm, run, lr, updates, limit_s)
    else:
        _work(comm, run, gradient, limit_s)
    run.seconds = time.perf_counter() - start
    return run


def by_name(mode: str, comm, weights, gradient: Gradient, lr: float, steps: int, period: int = 10) -> Run:
    """A run of `steps` global steps with the ranks 1, 2, … as workers, by the name of its function here.

    Rank 0 serves in an asynchronous run, which takes lr / p and an update per worker and step, and sleeps in all
    others. All ranks call it, it blocks, and returns the same weights and staleness on all. local_sgd: `period`.
    """
    server, workers = comm.rank == SERVER, comm.size - 1
    run = Run(weights)
    if mode == "asynchronous":
        run = asynchronous(comm, weights, gradient, lr / workers, steps * workers)
    else:
        of_workers = comm.Split(color=int(server), key=comm.rank)  # on rank 0: a communicator of itself alone
        if not server:
            more = {"period": period} if mode == "local_sgd" else {}
            run = MODES[mode](of_workers, weights, gradient, lr, steps, **more)
        of_workers.Free()
    wait(comm.Ibarrier(), "the end of the run", 120, nap_s=0.005)  # a rank with nothing to do sleeps
    return comm.bcast(run, root=SERVER if mode == "asynchronous" else 1)


MODES: dict[str, Callable[..., Run]] = {"synchronous": synchronous, "lag_sync": lag_sync, "local_sgd": local_sgd}


def _serve(comm, run: Run, lr: float, updates: int, limit_s: float) -> None:
    arriving, given = np.empty_like(run.weights), {}

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
        if update + 1 + len(given) < updates:  # else enough gradients are under way
            given[worker] = update + 1
            send(worker, WEIGHTS)
    for worker in range(1, comm.size):
        send(worker, LAST)


def _work(comm, run: Run, gradient: Gradient, limit_s: float) -> None:
    step = 0
    while True:
        request = comm.Irecv(run.weights, SERVER)
        if wait(request, "weights from the server", limit_s, SERVER_NAP_S).Get_tag() == LAST:
            return
        request = comm.Isend(gradient(run.weights, step), SERVER, GRADIENT)
        wait(request, "the server to take a gradient", limit_s)
        step += 1


def _start(comm, limit_s: float) -> float:
    """The moment at which all ranks are there."""
    wait(comm.Ibarrier(), "all ranks to begin", limit_s)
    return time.perf_counter()


def _mean(comm, array: np.ndarray, limit_s: float) -> np.ndarray:
    """The mean over ranks, in `array` itself."""
    wait(comm.Iallreduce(MPI.IN_PLACE, array), OTHERS, limit_s)
    array /= comm.size
    return array
