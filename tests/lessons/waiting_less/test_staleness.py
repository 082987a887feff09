"""Synchronous, lagging and asynchronous SGD on two ranks and on three: each update is what it should be.

The problems are small, so that every update can be made again by one process. With three ranks, no mean can be taken
for a half.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from our_ranks import on_the_first

from workshop_lib.exercises.solutions import Solution

from lessons.waiting_less import staleness
from lessons.waiting_less.workers import Workers, table

pytestmark = pytest.mark.full

RANKS = 3
N, LR, STEPS = 5, 0.3, 12
START = np.linspace(-1, 1, N)
ONE_STEP_LATE = Solution("07e_waiting_less", "one_step_late").load()


def near(weights):
    return pytest.approx(weights, abs=1e-12, rel=0)


def gradient_of(rank, weights, step):
    """Of a quadratic loss of this rank and step: linear in the weights, so that rounding costs little."""
    random = np.random.default_rng([rank, step])
    matrix = random.normal(size=(N, N)) / N
    return matrix @ matrix.T @ (weights - random.normal(size=N))


def mine(comm):
    """This rank's gradient, as the modes take it."""
    return lambda weights, step: gradient_of(comm.rank, weights, step)


def by_hand(ranks, lag):
    """On one process: w[t+1] = w[t] - LR * mean gradient of these ranks' batches t at w[t - lag]."""
    weights = [START]
    for step in range(STEPS):
        read = weights[max(step - lag, 0)]
        weights.append(weights[-1] - LR * np.mean([gradient_of(rank, read, step) for rank in ranks], axis=0))
    return weights[-1]


def never_late(start_average, gradient, weights, lr, steps):
    for step in range(steps):
        weights = weights - lr * start_average(gradient(weights, step)).wait()
    return weights


@on_the_first(2, 3)
def test_synchronous_and_lagging_ranks_follow_the_recurrence(comm):
    everyone = range(comm.size)
    run = staleness.synchronous(comm, START, mine(comm), LR, STEPS)
    assert run.weights == near(by_hand(everyone, lag=0)) and run.staleness == [0] * STEPS
    run = staleness.lag_sync(comm, START, mine(comm), LR, STEPS, ONE_STEP_LATE)
    assert run.weights == near(by_hand(everyone, lag=1))
    assert run.staleness == [0] + [1] * (STEPS - 1), "the first gradient has nothing to be late against"
    averages = staleness.lag_sync(comm, START, mine(comm), LR, STEPS, never_late)
    assert averages.weights == near(by_hand(everyone, lag=0)) and averages.staleness == [0] * STEPS
    assert np.abs(run.weights - by_hand(everyone, lag=0)).max() > 1e-3, "else the comparison could not fail"


@on_the_first(2, 3)
def test_an_asynchronous_run_is_plain_sgd_with_one_worker_and_stale_with_two(comm):
    computed, updates = [], 3 * STEPS

    def gradient(weights, step):
        computed.append(step)
        time.sleep(0.02 if comm.rank > 1 else 0.001)  # of two workers, the second is slow
        return gradient_of(comm.rank, weights, step)

    run = staleness.asynchronous(comm, START, gradient, LR, updates)
    behind = comm.bcast(run.staleness)
    counts = comm.allgather(len(computed))
    assert sum(counts) == len(behind) == updates
    assert len(set(comm.allgather(run.weights.tobytes()))) == 1
    alone = START
    for step in range(updates):
        alone = alone - LR * gradient_of(1, alone, step)
    if comm.size == 2:
        assert behind == [0] * updates and run.weights == near(alone)
    else:
        assert max(behind) > 1 and counts[1] > counts[2] > 0, "the slow worker's gradients are fewer and come late"


@on_the_first(2, 3)
def test_by_its_name_a_mode_runs_on_the_workers_and_all_ranks_get_the_result(comm):
    run = staleness.by_name("lag_sync", comm, START, mine(comm), LR, STEPS, train=ONE_STEP_LATE)
    assert run.weights == near(by_hand(range(1, comm.size), lag=1)) and run.staleness == [0] + [1] * (STEPS - 1)
    assert [len(times) for times in run.computing] == [0] + [STEPS] * (comm.size - 1)
    assert all(0 <= begin_s <= end_s for begin_s, end_s in run.computing[1])
    served = staleness.by_name("asynchronous", comm, START, mine(comm), LR, STEPS)
    assert len(served.read) == STEPS * (comm.size - 1)
    assert len(set(comm.allgather(served.weights.tobytes()))) == 1


def runs_ahead(comm, folder):
    """In how many steps the last rank sees all others begin the next step while it is still computing. They tell each
    other through files: a message would keep MPI going on the late rank, which computing does not."""
    seen = []

    def gradient(weights, step):
        (folder / f"{step} {comm.rank}").touch()
        if comm.rank == comm.size - 1 and step + 1 < STEPS:
            others = [folder / f"{step + 1} {rank}" for rank in range(comm.size - 1)]
            end = time.monotonic() + (10 if all(seen) else 0)  # one step is enough to tell
            while not all(file.exists() for file in others) and time.monotonic() < end:
                time.sleep(0.001)
            seen.append(time.monotonic() < end)
        return gradient_of(comm.rank, weights, step)

    staleness.lag_sync(comm, START, gradient, LR, STEPS, ONE_STEP_LATE)
    return sum(seen)


@on_the_first(2, 3)
def test_with_lag_sync_nobody_waits_for_a_rank_that_is_late_by_less_than_a_step(comm):
    with tempfile.TemporaryDirectory() as own:
        ahead = runs_ahead(comm, Path(comm.bcast(own)))
        assert comm.bcast(ahead, root=comm.size - 1) == STEPS - 1
        comm.Barrier()


@on_the_first(3)
def test_a_fixed_straggler_computes_less_only_if_nobody_waits_for_it(comm):
    workers = Workers(comm, late_s=0.02)
    steady = workers.train("synchronous", "fixed", 6)
    roaming = workers.train("synchronous", "at random", 6)
    workers.late_s = 0.2  # far longer than a gradient takes, even on a busy machine
    never = workers.train("asynchronous", "fixed", 6)
    if comm.rank == 0:
        assert steady["weights"] == roaming["weights"] != never["weights"], "a straggler doesn't change the arithmetic"
        assert steady["gradients per worker"] == [6, 6] and steady["mean staleness"] == 0
        assert steady["ms per step"] > 20
        quick, late = never["gradients per worker"]
        assert quick > late and quick + late == 2 * 6
        assert list(table([steady, never]).index) == [("fixed", "synchronous"), ("fixed", "asynchronous")]
