"""A small training on MNIST, with which 09_feeding_the_ranks measures what its ranks need, and how long they wait."""

import time
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.training.data import mnist
from workshop_lib.training.models import torch_cnn

BATCH = 64
ReadBatch = Callable[[int], np.ndarray]


class TimedTraining:
    """This rank's network, which computes gradients on one thread and keeps the seconds."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = torch_cnn.build(seed=1)
        self.labels = torch.tensor(mnist.load("train").labels).long()

    def gradient(self, images: np.ndarray, first_row: int) -> float:
        """Compute the gradient of some images (uint8 [n * 784]), whose labels begin at `first_row` of the training set.

        Returns the seconds it takes.
        """
        began = time.perf_counter()
        self.model.zero_grad()
        pixels = torch_cnn.normalize(torch.tensor(images.reshape(-1, 28, 28)))
        cross_entropy(self.model(pixels), self.labels[first_row : first_row + len(pixels)]).backward()
        return time.perf_counter() - began

    def epoch(self, batches: Iterable[np.ndarray], first_row: int) -> list[float]:
        """Train on all batches; return the seconds until the first batch, of waiting for the others, of computing."""
        first_s = waiting_s = computing_s = 0.0
        clock = time.perf_counter()
        for i, images in enumerate(batches):
            waited_s = time.perf_counter() - clock
            if i == 0:
                first_s = waited_s
            else:
                waiting_s += waited_s
            computing_s += self.gradient(images, first_row + BATCH * i)
            clock = time.perf_counter()
        return [first_s, waiting_s, computing_s]


def images_per_s() -> float:
    """How many images per second this rank can train on, if it never waits for them; the median of some batches."""
    training = TimedTraining()
    images = mnist.load("train").images[:BATCH]
    seconds = [training.gradient(images, 0) for _ in range(9)]
    return BATCH / float(np.median(seconds))


def throttled(read: ReadBatch, bytes_per_s: float) -> ReadBatch:
    """Slow `read` down to the speed of a storage that gives this rank at most `bytes_per_s`.

    The returned function sleeps for the rest of the time. So it leaves its core free, like a thread that waits for a
    disk.
    """

    def slow(i: int) -> np.ndarray:
        began = time.perf_counter()
        batch = read(i)
        time.sleep(max(0.0, batch.nbytes / bytes_per_s - (time.perf_counter() - began)))
        return batch

    return slow


def measure(comm, feeds: dict[str, Callable[[], Iterable]], first_row: int, repeats: int) -> dict[str, np.ndarray]:
    """Train `repeats` epochs with each feed, which returns an epoch's batches for this rank; the feeds alternate.

    All ranks call it, and it blocks. Every rank gets, per feed, the seconds [repeats, 3] of the slowest rank of each
    round, as `TimedTraining.epoch` returns them.
    """
    training = TimedTraining()
    spent: dict[str, list[list[float]]] = {name: [] for name in feeds}
    for _ in range(repeats):
        for name, feed in feeds.items():
            comm.Barrier()
            of_ranks = comm.allgather(training.epoch(feed(), first_row))
            spent[name].append(max(of_ranks, key=sum))
    return {name: np.array(rounds) for name, rounds in spent.items()}
