"""Workers of which one may be late in each step: 07e_waiting_less trains with them in three modes."""

import time
from statistics import fmean

import numpy as np
import pandas as pd

from workshop_lib.training.data import mnist
from workshop_lib.training.models.flat import FlatNetwork
from workshop_lib.training.record import weights_sha256

from lessons.waiting_less import staleness

BATCH = 32
LR = 0.1
TEST_IMAGES = 2000
SEED = 1  # chooses who is late "at random"
SHOWN = {"lag_sync": "one step late"}  # the names of modes in tables and figures


def is_late(worker: int, step: int, workers: int, straggler: str) -> bool:
    """Whether this worker (from 1) is late with its gradient number `step` (from 0)."""
    late = {
        "nobody": 0,
        "fixed": workers,
        "in turn": 1 + step % workers,
        "at random": 1 + np.random.default_rng([SEED, step]).integers(workers),
    }
    return worker == late[straggler]


class Workers:
    """Ranks 1, 2, … train the workshop's network on MNIST, and in each step one of them sleeps for late_s seconds.

    Rank 0 is the server of an asynchronous run, and sleeps in the other modes. gradient_s emulates slow computing: a
    gradient that takes less is returned after this many seconds.
    """

    def __init__(self, comm, late_s: float = 0.02, gradient_s: float = 0.0, seed: int = 1):
        self.comm = comm
        self.late_s = late_s
        self.gradient_s = gradient_s
        self.images = mnist.load("train")
        self.test = mnist.load("test")
        self.network = FlatNetwork(seed)
        self.start = self.network.weights()

    def train(self, mode: str, straggler: str, steps: int, **options) -> dict:
        """Train once, and return the measurements, the same on all ranks. All ranks call this method, and it blocks.

        mode: synchronous, lag_sync or asynchronous. straggler: "fixed" makes the last rank late in every
        step, "in turn" each worker in turn, "at random" one drawn with a fixed seed, "nobody" none.
        options: those of `staleness.by_name`.
        """
        workers = self.comm.size - 1

        def gradient(weights: np.ndarray, step: int) -> np.ndarray:
            end_s = time.perf_counter() + self.gradient_s
            rows = np.random.default_rng([self.comm.rank, step]).integers(self.images.total, size=BATCH)
            computed = self.network.gradient(weights, self.images.images[rows], self.images.labels[rows])
            if is_late(self.comm.rank, step, workers, straggler):
                end_s = max(end_s, time.perf_counter()) + self.late_s
            time.sleep(max(0, end_s - time.perf_counter()))
            return computed

        self.network.gradient(self.start, self.images.images[:BATCH], self.images.labels[:BATCH])  # warms up
        run = staleness.by_name(mode, self.comm, self.start, gradient, LR, steps, **options)
        self.network.set(run.weights)
        return {
            "straggler": straggler,
            "mode": SHOWN.get(mode, mode),
            "ms per step": 1000 * run.seconds / steps,
            "gradients per worker": [len(times) for times in run.computing[1:]],
            "mean staleness": fmean(run.staleness),
            "test accuracy": self.network.accuracy(self.test.images[:TEST_IMAGES], self.test.labels[:TEST_IMAGES]),
            "weights": weights_sha256([run.weights])[:6],
            "computing": run.computing[1:],
        }


def table(runs: list[dict]) -> pd.DataFrame:
    """Return the measurements of `Workers.train` as a table with a row per run."""
    frame = pd.DataFrame(runs).drop(columns="computing").set_index(["straggler", "mode"])
    frame["gradients per worker"] = [" and ".join(map(str, counts)) for counts in frame["gradients per worker"]]
    formats = {"ms per step": "{:.1f}", "mean staleness": "{:.2f}", "test accuracy": "{:.1%}"}
    for column, form in formats.items():
        frame[column] = frame[column].map(form.format)
    return frame
