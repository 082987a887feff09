"""Run on every rank: the modes of staleness.py on small problems, where every update can be recomputed.

staleness_runs.py FILE    rank 0 writes what each rank found, {name: [value by rank]}, as JSON
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from workshop_lib.comm import staleness

FOLDER = Path(sys.argv[1]).parent
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
N, LR, STEPS = 5, 0.3, 12
START = np.linspace(-1, 1, N)


def gradient_of(rank, weights, step):
    """Of a quadratic loss of this rank and step: linear in the weights, so that nothing is lost in rounding
    but the last digits."""
    random = np.random.default_rng([rank, step])
    matrix = random.normal(size=(N, N)) / N
    return matrix @ matrix.T @ (weights - random.normal(size=N))


def mine(weights, step):
    return gradient_of(RANK, weights, step)


def mean_gradient(weights, step, ranks=range(SIZE)):
    return np.mean([gradient_of(rank, weights, step) for rank in ranks], axis=0)


def difference(found, expected):
    return float(np.abs(found - expected).max())


def by_hand(lag):
    """On one process: w[t+1] = w[t] - LR * mean gradient of batch t at w[t - lag]."""
    weights = [START]
    for step in range(STEPS):
        weights.append(weights[-1] - LR * mean_gradient(weights[max(step - lag, 0)], step))
    return weights[-1]


def synchronous():
    run = staleness.synchronous(WORLD, START, mine, LR, STEPS)
    return {"difference": difference(run.weights, by_hand(lag=0)), "staleness": run.staleness}


def lag_sync():
    run = staleness.lag_sync(WORLD, START, mine, LR, STEPS)
    return {
        "difference": difference(run.weights, by_hand(lag=1)),
        "from synchronous": difference(run.weights, by_hand(lag=0)),
        "staleness": run.staleness,
    }


def local_every_step():
    run = staleness.local_sgd(WORLD, START, mine, LR, STEPS, period=1)
    return {"difference": difference(run.weights, by_hand(lag=0)), "staleness": run.staleness}


def local_every_five():
    run = staleness.local_sgd(WORLD, START, mine, LR, STEPS, period=5)
    of_ranks = [START] * SIZE
    for step in range(STEPS):
        of_ranks = [w - LR * gradient_of(rank, w, step) for rank, w in enumerate(of_ranks)]
        if step in (4, 9, 11):
            of_ranks = [np.mean(of_ranks, axis=0)] * SIZE
    return {
        "difference": difference(run.weights, of_ranks[0]),
        "from synchronous": difference(run.weights, by_hand(lag=0)),
        "staleness": run.staleness,
    }


def asynchronous():
    """Rank 1 is quick and the last one slow, if they are two."""
    computed = []

    def slow_on_one(weights, step):
        computed.append(step)
        time.sleep(0.02 if RANK > 1 else 0.001)
        return mine(weights, step)

    run = staleness.asynchronous(WORLD, START, slow_on_one, LR, 3 * STEPS)
    found = {"updates": len(run.read), "staleness": run.staleness, "computed": computed}
    # Every update again, on this process, from the server's notes.
    read, workers = WORLD.bcast((run.read, run.workers))
    weights, done = [START], dict.fromkeys(range(1, SIZE), 0)
    for version, worker in zip(read, workers, strict=True):
        weights.append(weights[-1] - LR * gradient_of(worker, weights[version], done[worker]))
        done[worker] += 1
    alone = START
    for step in range(3 * STEPS):  # plain SGD of rank 1's batches
        alone = alone - LR * gradient_of(1, alone, step)
    return found | {
        "difference": difference(run.weights, weights[-1]),
        "from plain SGD": difference(run.weights, alone),
        "by worker": done,
    }


def fewer_updates_than_workers():
    run = staleness.asynchronous(WORLD, START, mine, LR, 1)
    expected = START - LR * gradient_of(1, START, 0)
    return {"difference": difference(run.weights, expected), "updates": len(run.read)}


def none_at_all():
    runs = [
        staleness.synchronous(WORLD, START, mine, LR, 0),
        staleness.lag_sync(WORLD, START, mine, LR, 0),
        staleness.local_sgd(WORLD, START, mine, LR, 0, period=3),
        staleness.asynchronous(WORLD, START, mine, LR, 0),
    ]
    return max(difference(run.weights, START) for run in runs)


def runs_ahead(mode, late, limit_s):
    """In how many steps the late rank sees all others begin the next step while it is still computing. They
    tell each other through files: a message would keep MPI going on the late rank, which computing does not.
    """
    seen = []

    def gradient(weights, step):
        nonlocal limit_s
        (FOLDER / f"{mode.__name__} {late} {step} {RANK}").touch()
        if late == RANK and step + 1 < STEPS:
            names = [f"{mode.__name__} {late} {step + 1} {rank}" for rank in range(SIZE) if rank != late]
            end = time.monotonic() + limit_s
            while not (all_there := all((FOLDER / name).exists() for name in names)):
                if time.monotonic() > end:
                    limit_s = 0.0  # one step is enough to tell
                    break
                time.sleep(0.001)
            seen.append(all_there)
        return mine(weights, step)

    mode(WORLD, START, gradient, LR, STEPS)
    return sum(seen)


def ahead():
    """By mode: for a late rank that is the first, and one that is the last."""
    return {
        "lag_sync": [runs_ahead(staleness.lag_sync, late, 10) for late in (0, SIZE - 1)],
        "synchronous": [runs_ahead(staleness.synchronous, late, 0.02) for late in (0, SIZE - 1)],
    }


def a_rank_that_does_not_come():
    """Rank 0 waits, and is told so; then the last rank comes, so that MPI can end in peace."""
    comm, errors, took_s = WORLD.Dup(), [], []
    for mode, more in ((staleness.synchronous, {}), (staleness.asynchronous, {})):
        WORLD.Barrier()
        if RANK == SIZE - 1:
            WORLD.recv(source=0)
            comm.Ibarrier().Wait()
        elif RANK == 0:
            begun = time.perf_counter()
            try:
                mode(comm, START, mine, LR, 2, limit_s=0.3, **more)
            except TimeoutError as error:
                errors.append(error)
                took_s.append(time.perf_counter() - begun)
            WORLD.send(None, SIZE - 1)
        else:
            comm.Ibarrier().Wait()
        WORLD.Barrier()
    return {"errors": [str(error) for error in errors], "seconds": took_s}


def a_worker_that_never_answers():
    comm, told, took_s = WORLD.Dup(), None, None
    if RANK == 0:
        begun = time.perf_counter()
        try:
            staleness.asynchronous(comm, START, mine, LR, 1, limit_s=0.3)
        except TimeoutError as error:
            told, took_s = error, time.perf_counter() - begun
    else:
        comm.Ibarrier().Wait()
        if RANK == 1:
            comm.Recv(np.empty(N), 0)
            time.sleep(0.6)
            comm.Send(np.zeros(N), 0, staleness.GRADIENT)
    WORLD.Barrier()
    return {"error": told and str(told), "seconds": took_s}


CASES = [
    synchronous,
    lag_sync,
    local_every_step,
    local_every_five,
    asynchronous,
    fewer_updates_than_workers,
    none_at_all,
    ahead,
    a_rank_that_does_not_come,
    a_worker_that_never_answers,
]
found = {case.__name__: WORLD.gather(case()) for case in CASES}
if RANK == 0:
    Path(sys.argv[1]).write_text(json.dumps(found))
