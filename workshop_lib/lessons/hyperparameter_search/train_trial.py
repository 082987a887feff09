"""Train one trial of a search up to a number of images, on one rank or on all of them, and continue it later.

The ranks of 14_hyperparameter_search run this file. A trial saves its weights to a file after each of its jobs. So its
next job may run on a different rank, or on fresh ranks after a crash, and takes the same steps as if it never stopped.
"""

import functools
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from mpi4py import MPI

from workshop_lib.data import mnist, shard
from workshop_lib.errors import InputError
from workshop_lib.lessons.hyperparameter_search.schedulers import EPOCH
from workshop_lib.models.flat import FlatNetwork
from workshop_lib.paths import replacing

IMAGES = EPOCH  # the first of the training images; few, so that a trial takes seconds
HELD_OUT = 5000  # the last of the training images: they choose among trials, and no trial trains on them
LOSS_EVERY = 512  # images per point of the training curve


class Job(NamedTuple):
    """A job: train trial number `trial` with `setting` until it has seen `images` images in total.

    setting: lr, and optionally momentum (0), the global batch (64), and the seed (1) of the initial weights and of the
    order of the images.
    """

    trial: int
    setting: Mapping[str, float]
    images: int


class TrialResult(TypedDict):
    """The result of a job.

    images: how many the trial has seen in total; new_images: how many of them in this job. losses: pairs (images seen,
    mean training loss) of this job. held_out: accuracy on the held-out images. diverged: whether some weights are no
    longer finite. seconds: how long the job took on its rank.
    """

    trial: int
    setting: dict[str, float]
    images: int
    new_images: int
    losses: list[tuple[int, float]]
    held_out: float
    diverged: bool
    seconds: float


class TrialState(NamedTuple):
    """The state of a trial: weights and velocity, float32 [n], and how many images it has seen."""

    weights: np.ndarray
    velocity: np.ndarray
    images: int


def checked(job: Job) -> Job:
    """Return the job with the defaults of its setting filled in. Raises InputError for a job that nobody can train."""
    setting = {"momentum": 0.0, "batch": 64, "seed": 1} | dict(job.setting)
    if unknown := set(setting) - {"lr", "momentum", "batch", "seed"}:
        raise InputError(f"trial {job.trial} sets {unknown.pop()!r}; a setting has lr, momentum, batch and seed.")
    if not setting.get("lr", 0) > 0:
        raise InputError(f"trial {job.trial} has the learning rate {setting.get('lr')!r}; it must be above 0.")
    if not 0 <= setting["momentum"] < 1:
        raise InputError(f"trial {job.trial} has the momentum {setting['momentum']!r}; it must be at least 0, below 1.")
    if not 1 <= setting["batch"] <= IMAGES:
        raise InputError(f"trial {job.trial} has the batch {setting['batch']!r}; use 1 to {IMAGES}.")
    return job._replace(setting=setting)


def run(comm, folder: Path, job: Job) -> TrialResult:
    """Run a job: continue the trial from its file in `folder`, save its new state there, and evaluate it.

    All ranks of `comm` call it, and it blocks. Each step does one allreduce of the gradient, 4 n bytes. If some weights
    are no longer finite, the result says so in `diverged`, and its accuracy is that of these weights. Raises InputError
    for a job that `checked` refuses, and for a trial that has seen this many images already.
    """
    began = time.perf_counter()
    job = checked(job)
    torch.set_num_threads(1)
    train, held_out = data()
    network = FlatNetwork(int(job.setting["seed"]))
    state = load(folder, job.trial) or TrialState(network.weights(), np.zeros_like(network.weights()), 0)
    if state.images >= job.images:
        raise InputError(
            f"trial {job.trial} has seen {state.images} images in {folder} already, and was sent to {job.images}: "
            "give each search a folder of its own."
        )
    losses: list[tuple[int, float]] = []
    with np.errstate(all="ignore"):  # a learning rate that is too large ends in infinities
        end = _steps(comm, network, train, state, job, losses)
    network.set(end.weights)
    part = slice(*shard.shard_bounds(held_out.total, comm.rank, comm.size))
    right = network.accuracy(held_out.images[part], held_out.labels[part]) * (part.stop - part.start)
    if comm.rank == 0:
        save(folder, job.trial, end)
    return TrialResult(
        trial=job.trial,
        setting=dict(job.setting),
        images=end.images,
        new_images=end.images - state.images,
        losses=losses,
        held_out=comm.allreduce(right) / held_out.total,
        diverged=not np.isfinite(end.weights).all(),
        seconds=time.perf_counter() - began,
    )


def _steps(comm, network, train, state: TrialState, job: Job, losses: list) -> TrialState:
    """Train by plain SGD with momentum, at a constant learning rate; return the new state."""
    weights, velocity, seen = state
    lr = np.float32(job.setting["lr"])
    momentum = np.float32(job.setting["momentum"])
    since = seen
    total = 0.0
    while seen < job.images:
        size = min(int(job.setting["batch"]), job.images - seen)
        rows = order(int(job.setting["seed"]), seen, size, train.total)
        mine = rows[slice(*shard.shard_bounds(len(rows), comm.rank, comm.size))]
        gradient = np.zeros_like(weights)
        if len(mine):
            gradient = network.gradient(weights, train.images[mine], train.labels[mine])
            gradient *= np.float32(len(mine) / len(rows))
            total += network.loss * len(mine) * comm.size
        if comm.size > 1:
            comm.Allreduce(MPI.IN_PLACE, gradient)
        velocity = momentum * velocity + gradient
        weights = weights - lr * velocity
        seen += len(rows)
        if seen // LOSS_EVERY > since // LOSS_EVERY or seen == job.images:
            if math.isfinite(total):
                losses.append((seen, total / (seen - since)))
            since = seen
            total = 0.0
    return TrialState(weights, velocity, seen)


def data() -> tuple[mnist.Split, mnist.Split]:
    """Return the images that trials train on, and the held-out images that choose among trials.

    Both are parts of the training images. A small data set gives fewer of both, and at most a quarter is held out.
    """
    whole = mnist.load("train")
    held_out = min(HELD_OUT, whole.total // 4)

    def part(first: int, stop: int) -> mnist.Split:
        return mnist.Split(whole.images[first:stop], whole.labels[first:stop], first, stop - first)

    return part(0, min(IMAGES, whole.total - held_out)), part(whole.total - held_out, whole.total)


def ready() -> None:
    """Load the images, which takes seconds the first time, and import what training needs."""
    data()
    mnist.load("test")


def order(seed: int, first: int, count: int, total: int = IMAGES) -> np.ndarray:
    """Return the indices of the `count` images that follow the first `first` images.

    Every epoch has its own order, which does not depend on the batch size.
    """
    places = np.arange(first, first + count)
    epochs = places // total
    parts = [_epoch(seed, epoch, total)[places[epochs == epoch] % total] for epoch in np.unique(epochs).tolist()]
    return np.concatenate(parts)


@functools.lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, total: int) -> np.ndarray:
    return shard.epoch_permutation(total, seed, epoch)


def path(folder: Path, trial: int) -> Path:
    return Path(folder) / f"trial-{trial}.npz"


def save(folder: Path, trial: int, state: TrialState) -> None:
    """Write a trial's state to its file, completely or not at all."""
    with replacing(path(folder, trial)) as temporary, open(temporary, "wb") as file:
        np.savez(file, **state._asdict())


def load(folder: Path, trial: int) -> TrialState | None:
    """Return a trial's saved state, or None for a trial that has not begun."""
    if not path(folder, trial).exists():
        return None
    with np.load(path(folder, trial)) as saved:
        return TrialState(saved["weights"], saved["velocity"], int(saved["images"]))


def test_accuracy(folder: Path, trial: int) -> float:
    """Return a trial's accuracy on the test images. They must not choose a trial, so call it once the search is over.

    Raises InputError for a trial without saved weights.
    """
    if (state := load(folder, trial)) is None:
        raise InputError(f"trial {trial} has left no weights in {folder}.")
    test = mnist.load("test")
    network = FlatNetwork()
    network.set(state.weights)
    return network.accuracy(test.images, test.labels)


def trial_here(folder, trial: int, setting, images: int, together: bool):
    """Run a job on this rank alone or on all ranks `together`, and return its result."""
    return run(MPI.COMM_WORLD if together else MPI.COMM_SELF, folder, Job(trial, setting, images))
