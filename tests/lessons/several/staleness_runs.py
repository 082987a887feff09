"""Run on every rank: the modes of staleness.py on small problems, where every update can be recomputed."""

import time

import numpy as np

from workshop_lib.lessons.less_communication import staleness

N, LR, STEPS = 5, 0.3, 12
START = np.linspace(-1, 1, N)


def gradient_of(rank, weights, step):
    """Of a quadratic loss of this rank and step: linear in the weights, so that nothing is lost in rounding
    but the last digits."""
    random = np.random.default_rng([rank, step])
    matrix = random.normal(size=(N, N)) / N
    return matrix @ matrix.T @ (weights - random.normal(size=N))


def difference(found, expected):
    return float(np.abs(found - expected).max())


class Staleness:
    """The cases on the ranks of one communicator."""

    def __init__(self, comm, folder):
        self.comm, self.folder = comm, folder

    def mine(self, weights, step):
        return gradient_of(self.comm.rank, weights, step)

    def mean_gradient(self, weights, step):
        return np.mean([gradient_of(rank, weights, step) for rank in range(self.comm.size)], axis=0)

    def by_hand(self, lag):
        """On one process: w[t+1] = w[t] - LR * mean gradient of batch t at w[t - lag]."""
        weights = [START]
        for step in range(STEPS):
            weights.append(weights[-1] - LR * self.mean_gradient(weights[max(step - lag, 0)], step))
        return weights[-1]

    def synchronous(self):
        run = staleness.synchronous(self.comm, START, self.mine, LR, STEPS)
        return {"difference": difference(run.weights, self.by_hand(lag=0)), "staleness": run.staleness}

    def lag_sync(self):
        run = staleness.lag_sync(self.comm, START, self.mine, LR, STEPS)
        return {
            "difference": difference(run.weights, self.by_hand(lag=1)),
            "from synchronous": difference(run.weights, self.by_hand(lag=0)),
            "staleness": run.staleness,
        }

    def local_every_step(self):
        run = staleness.local_sgd(self.comm, START, self.mine, LR, STEPS, period=1)
        return {"difference": difference(run.weights, self.by_hand(lag=0)), "staleness": run.staleness}

    def local_every_five(self):
        run = staleness.local_sgd(self.comm, START, self.mine, LR, STEPS, period=5)
        of_ranks = [START] * self.comm.size
        for step in range(STEPS):
            of_ranks = [w - LR * gradient_of(rank, w, step) for rank, w in enumerate(of_ranks)]
            if step in (4, 9, 11):
                of_ranks = [np.mean(of_ranks, axis=0)] * self.comm.size
        return {
            "difference": difference(run.weights, of_ranks[0]),
            "from synchronous": difference(run.weights, self.by_hand(lag=0)),
            "staleness": run.staleness,
        }

    def asynchronous(self):
        """Rank 1 is quick and the last one slow, if they are two."""
        computed = []

        def slow_on_one(weights, step):
            computed.append(step)
            time.sleep(0.02 if self.comm.rank > 1 else 0.001)
            return self.mine(weights, step)

        run = staleness.asynchronous(self.comm, START, slow_on_one, LR, 3 * STEPS)
        found = {"updates": len(run.read), "staleness": run.staleness, "computed": computed}
        # Every update again, on this process, from the server's notes.
        read, workers = self.comm.bcast((run.read, run.workers))
        weights, done = [START], dict.fromkeys(range(1, self.comm.size), 0)
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

    def by_name(self):
        """The workers' run on all ranks, and how far it is from that of the workers alone."""
        run = staleness.by_name("lag_sync", self.comm, START, self.mine, LR, STEPS)
        weights = [START]
        for step in range(STEPS):
            gradients = [gradient_of(rank, weights[max(step - 1, 0)], step) for rank in range(1, self.comm.size)]
            weights.append(weights[-1] - LR * np.mean(gradients, axis=0))
        served = staleness.by_name("asynchronous", self.comm, START, self.mine, LR, STEPS)
        everyone = self.comm.allgather(served.weights.tobytes())
        return {
            "difference": difference(run.weights, weights[-1]),
            "staleness": run.staleness,
            "updates": len(served.read),
            "equal": len(set(everyone)) == 1,
        }

    def fewer_updates_than_workers(self):
        run = staleness.asynchronous(self.comm, START, self.mine, LR, 1)
        expected = START - LR * gradient_of(1, START, 0)
        return {"difference": difference(run.weights, expected), "updates": len(run.read)}

    def none_at_all(self):
        runs = [
            staleness.synchronous(self.comm, START, self.mine, LR, 0),
            staleness.lag_sync(self.comm, START, self.mine, LR, 0),
            staleness.local_sgd(self.comm, START, self.mine, LR, 0, period=3),
            staleness.asynchronous(self.comm, START, self.mine, LR, 0),
        ]
        return max(difference(run.weights, START) for run in runs)

    def runs_ahead(self, mode, late, limit_s):
        """In how many steps the late rank sees all others begin the next step while it is still computing. They
        tell each other through files: a message would keep MPI going on the late rank, which computing does not.
        """
        seen = []

        def gradient(weights, step):
            nonlocal limit_s
            (self.folder / f"{mode.__name__} {late} {step} {self.comm.rank}").touch()
            if late == self.comm.rank and step + 1 < STEPS:
                names = [f"{mode.__name__} {late} {step + 1} {rank}" for rank in range(self.comm.size) if rank != late]
                end = time.monotonic() + limit_s
                while not (all_there := all((self.folder / name).exists() for name in names)):
                    if time.monotonic() > end:
                        limit_s = 0.0  # one step is enough to tell
                        break
                    time.sleep(0.001)
                seen.append(all_there)
            return self.mine(weights, step)

        mode(self.comm, START, gradient, LR, STEPS)
        return sum(seen)

    def ahead(self):
        """By mode: for a late rank that is the first, and one that is the last."""
        return {
            "lag_sync": [self.runs_ahead(staleness.lag_sync, late, 10) for late in (0, self.comm.size - 1)],
            "synchronous": [self.runs_ahead(staleness.synchronous, late, 0.02) for late in (0, self.comm.size - 1)],
        }

    def a_rank_that_does_not_come(self):
        """Rank 0 waits, and is told so; then the last rank comes, so that MPI can end in peace."""
        comm, errors, took_s = self.comm.Dup(), [], []
        for mode, more in ((staleness.synchronous, {}), (staleness.asynchronous, {})):
            self.comm.Barrier()
            if self.comm.rank == self.comm.size - 1:
                self.comm.recv(source=0)
                comm.Ibarrier().Wait()
            elif self.comm.rank == 0:
                begun = time.perf_counter()
                try:
                    mode(comm, START, self.mine, LR, 2, limit_s=0.3, **more)
                except TimeoutError as error:
                    errors.append(error)
                    took_s.append(time.perf_counter() - begun)
                self.comm.send(None, self.comm.size - 1)
            else:
                comm.Ibarrier().Wait()
            self.comm.Barrier()
        return {"errors": [str(error) for error in errors], "seconds": took_s}

    def a_worker_that_never_answers(self):
        comm, told, took_s = self.comm.Dup(), None, None
        if self.comm.rank == 0:
            begun = time.perf_counter()
            try:
                staleness.asynchronous(comm, START, self.mine, LR, 1, limit_s=0.3)
            except TimeoutError as error:
                told, took_s = error, time.perf_counter() - begun
        else:
            comm.Ibarrier().Wait()
            if self.comm.rank == 1:
                comm.Recv(np.empty(N), 0)
                time.sleep(0.6)
                comm.Send(np.zeros(N), 0, staleness.GRADIENT)
        self.comm.Barrier()
        return {"error": told and str(told), "seconds": took_s}


CASES = [
    Staleness.synchronous,
    Staleness.lag_sync,
    Staleness.local_every_step,
    Staleness.local_every_five,
    Staleness.asynchronous,
    Staleness.by_name,
    Staleness.fewer_updates_than_workers,
    Staleness.none_at_all,
    Staleness.ahead,
    Staleness.a_rank_that_does_not_come,
    Staleness.a_worker_that_never_answers,
]


def outcomes(comm, folder):
    """{case: [outcome by rank]} on the first rank."""
    runs = Staleness(comm, folder)
    return {case.__name__: comm.gather(case(runs)) for case in CASES}
