"""Train one trial of a search up to a number of images, on one rank or on all of them, and continue it later.

The ranks of 14_hyperparameter_search run this file. A trial saves its weights to a file after each of its jobs. So its
next job may run on a different rank, or on fresh ranks after a crash, and takes the same steps as if it never stopped.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from mpi4py import MPI

from workshop_lib.errors import InputError
from workshop_lib.paths import replacing
from workshop_lib.training.data import mnist, shard
from workshop_lib.training.models.flat import FlatNetwork

from lessons.hyperparameter_search.schedulers import EPOCH

IMAGES = EPOCH  # the first of the training images; few, so that a trial takes seconds
HELD_OUT = 5000  # the last of the training images: they choose among trials, and no trial trains on them
LOSS_OF = 512  # the training loss is a mean over up to this many images


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

    images: how many the trial has seen in total; new_images: how many of them in this job. train_loss: the mean loss of
    the last images that it trained on. held_out: accuracy on the held-out images. diverged: whether some weights are no
    longer finite. seconds: how long the job took on its rank.
    """

    trial: int
    setting: dict[str, float]
    images: int
    new_images: int
    train_loss: float
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
    """Run a `checked` job: continue the trial from its file in `folder`, save its new state there, and evaluate it.

    All ranks of `comm` call it, and it blocks. Each step does one allreduce of the gradient, 4 n bytes. If some weights
    are no longer finite, the result says so in `diverged`, and its accuracy is that of these weights.
    """
    began = time.perf_counter()
    torch.set_num_threads(1)
    train, held_out = data()
    network = FlatNetwork(int(job.setting["seed"]))
    state = TrialState(network.weights(), np.zeros_like(network.weights()), 0)
    if path(folder, job.trial).exists():
        state = load(folder, job.trial)
    with np.errstate(all="ignore"):  # a learning rate that is too large ends in infinities
        end, train_loss = _steps(comm, network, train, state, job)
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
        train_loss=train_loss,
        held_out=comm.allreduce(right) / held_out.total,
        diverged=not np.isfinite(end.weights).all(),
        seconds=time.perf_counter() - began,
    )


def _steps(comm, network, train, state: TrialState, job: Job) -> tuple[TrialState, float]:
    """Train by plain SGD with momentum, at a constant learning rate; return the new state and the training loss."""
    weights, velocity, seen = state
    lr = np.float32(job.setting["lr"])
    momentum = np.float32(job.setting["momentum"])
    since = seen
    total = train_loss = 0.0
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
        if seen // LOSS_OF > since // LOSS_OF or seen == job.images:
            train_loss = total / (seen - since)
            since = seen
            total = 0.0
    return TrialState(weights, velocity, seen), train_loss


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
    parts = []
    for epoch in np.unique(epochs).tolist():
        parts.append(shard.epoch_permutation(total, seed, epoch)[places[epochs == epoch] % total])
    return np.concatenate(parts)


def path(folder: Path, trial: int) -> Path:
    return Path(folder) / f"trial-{trial}.npz"


def save(folder: Path, trial: int, state: TrialState) -> None:
    """Write a trial's state to its file, completely or not at all."""
    with replacing(path(folder, trial)) as temporary, open(temporary, "wb") as file:
        np.savez(file, **state._asdict())


def load(folder: Path, trial: int) -> TrialState:
    """Return a trial's saved state."""
    with np.load(path(folder, trial)) as saved:
        return TrialState(saved["weights"], saved["velocity"], int(saved["images"]))


def test_accuracy(folder: Path, trial: int) -> float:
    """Return a trial's accuracy on the test images, which must not choose a trial: call it once the search is over."""
    test = mnist.load("test")
    network = FlatNetwork()
    network.set(load(folder, trial).weights)
    return network.accuracy(test.images, test.labels)


def trial_here(folder, trial: int, setting, images: int, together: bool):
    """Run a job on this rank alone or on all ranks `together`, and return its result."""
    return run(MPI.COMM_WORLD if together else MPI.COMM_SELF, folder, Job(trial, setting, images))
