"""Trains on 1, 2, 4, ... emulated ranks for 09_feeding_the_ranks, and measures how long they wait for their batches."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypedDict

import numpy as np
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib import emulation
from workshop_lib.machine import catalogue
from workshop_lib.training.data import mnist
from workshop_lib.training.models import torch_cnn

from lessons.feeding_the_ranks.storage import Helper, Piece, Storage

BATCH = 64
MODEL = "resnet-50"
Read = Callable[[int], np.ndarray]
Feed = Callable[[Read, int, Helper], Iterable[np.ndarray]]
Pieces = Callable[[int, int], list[Piece]]


class TrainingRow(TypedDict):
    """One epoch on some ranks, in emulated seconds."""

    ranks: int
    images_per_s: float
    waiting: float  # the share of the epoch in which the slowest rank waited for input
    opens: int
    nbytes: int


class Training:
    """This rank's network, which stands for MODEL, in data-parallel training with the other ranks of a communicator."""

    def __init__(self, comm) -> None:
        torch.set_num_threads(1)
        self.comm = comm
        self.model = torch_cnn.build(seed=1)
        self.labels = torch.tensor(mnist.load("train").labels).long()
        emulation.current().declare(catalogue.model(MODEL), BATCH, self.model, torch.zeros(1, 1, 28, 28))

    def step(self, images: np.ndarray, first_row: int) -> None:
        """Compute the gradient of some images (uint8 [n * 784]), and sum it over the ranks.

        The labels of the images begin at `first_row` of the training set.
        """
        self.model.zero_grad()
        pixels = torch_cnn.normalize(torch.tensor(images.reshape(-1, 28, 28)))
        labels = self.labels[torch.arange(first_row, first_row + len(pixels)) % len(self.labels)]
        cross_entropy(self.model(pixels), labels).backward()
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        gradient = torch.cat([each.flatten() for each in gradients]).numpy()
        self.comm.Allreduce(MPI.IN_PLACE, gradient)

    def epoch(self, batches: Iterable[np.ndarray], first_row: int) -> tuple[float, float]:
        """Train on all batches; return the seconds of the epoch, and those of waiting for a batch."""
        began = clock = time.perf_counter()
        waiting_s = 0.0
        for i, images in enumerate(batches):
            waiting_s += time.perf_counter() - clock
            self.step(images, first_row + BATCH * i)
            clock = time.perf_counter()
        return clock - began, waiting_s


def in_turn(read: Read, n: int, helper: Helper) -> Iterator[np.ndarray]:
    """Read each batch when it's needed, and no earlier."""
    return map(read, range(n))


def scaling(comm, steps: int, pieces: Pieces, feed: Feed = in_turn) -> list[TrainingRow]:
    """Train `steps` steps on the first 1, 2, 4, ... ranks. All ranks call it, and it blocks.

    pieces(rank, i): what a rank reads for its batch i. feed(read, n, helper): the batches, in order. Rank 0 gets a row
    for each number of ranks, and the other ranks get those in which they took part.
    """
    rows = []
    size = 1
    while size <= comm.size:
        group = comm.Split(0 if comm.rank < size else MPI.UNDEFINED, comm.rank)
        if group != MPI.COMM_NULL:
            rows.append(_row(group, steps, pieces, feed))
            group.Free()
        comm.Barrier()
        size *= 2
    return rows


def _row(group, steps: int, pieces: Pieces, feed: Feed) -> TrainingRow:
    training = Training(group)
    storage = Storage(group)
    group.Barrier()
    batches = feed(lambda i: storage.read(pieces(group.rank, i)), steps, Helper())
    seconds, waiting_s = training.epoch(batches, steps * BATCH * group.rank)
    of_ranks = storage.ranks.allgather((seconds, waiting_s / seconds, storage.opens, storage.nbytes))
    storage.free()
    epochs_s, waiting, opens, nbytes = zip(*of_ranks, strict=True)
    images = steps * BATCH * group.size
    return TrainingRow(
        ranks=group.size,
        images_per_s=images / max(epochs_s),
        waiting=max(waiting),
        opens=sum(opens),
        nbytes=sum(nbytes),
    )


def computing_images_per_s() -> float:
    """How many images per second a rank trains on if it never waits, for input or for another rank."""
    machine = emulation.current().machine
    return BATCH / machine.compute_of(catalogue.model(MODEL)).step_s(BATCH)
