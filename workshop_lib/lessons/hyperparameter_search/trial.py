"""One trial of a search: train a setting up to a number of images, on one rank or on all of them, and go on later.

A trial leaves its weights in a file after each of its jobs. So its next job may run on another rank, or on fresh
ranks after a crash, and takes the same steps as if nobody had stopped it.
"""

import functools
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import numpy as np
import torch
from mpi4py import MPI

from workshop_lib.data import mnist, shard
from workshop_lib.errors import InputError
from workshop_lib.lessons.gradient_noise.flat import FlatNetwork
from workshop_lib.paths import replacing

if TYPE_CHECKING:
    pass


IMAGES = 4096  # the first of the training images; small, so that a trial takes seconds
HELD_OUT = 5000  # the last of the training images: they choose, and no trial trains on them
LOSS_EVERY = 512  # images per point of the training curve
PUBLISH_EVERY_S = 0.25


class Job(NamedTuple):
    """Train trial number `trial`, with `setting`, until it has seen `images` images altogether.

    setting: lr, and if given momentum (0), batch (64), seed (1) of the initial weights and of the order of the images.
    """

    trial: int
    setting: Mapping[str, float]
    images: int


class Result(TypedDict):
    """What came of a job. images: that the trial has seen altogether. new_images: in this job. losses: (images, mean
    training loss) of this job. held_out: accuracy on the held-out images. seconds: of this job, on its rank."""

    trial: int
    setting: dict[str, float]
    images: int
    new_images: int
    losses: list[tuple[int, float]]
    held_out: float
    diverged: bool
    seconds: float


class State(NamedTuple):
    """Where a trial is: weights and velocity float32 [n], and the images that it has seen."""

    weights: np.ndarray
    velocity: np.ndarray
    images: int


def checked(job: Job) -> Job:
    """The job, with what a setting leaves out filled in. Raises InputError for one that nobody can train."""
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


def run(comm, folder: Path, job: Job, progress: Callable[[list], object] = len) -> Result:
    """Train as `job` says, from where the trial's file in `folder` is; all ranks of `comm` call it, and it blocks.

    One allreduce of the gradient, 4 n bytes, per step. `progress` is called with the curve of this job as it grows.
    A trial whose weights are no longer finite is over: its accuracy is that of these weights.
    """
    began, job = time.perf_counter(), checked(job)
    torch.set_num_threads(1)
    train, held_out = data()
    network = FlatNetwork(int(job.setting["seed"]))
    state = load(folder, job.trial) or State(network.weights(), np.zeros_like(network.weights()), 0)
    if state.images >= job.images:
        raise InputError(
            f"trial {job.trial} has seen {state.images} images in {folder} already, and was sent to {job.images}: "
            "give each search a folder of its own."
        )
    losses: list[tuple[int, float]] = []
    with np.errstate(all="ignore"):  # a learning rate that is too large ends in infinities
        end = _steps(comm, network, train, state, job, losses, progress)
    network.set(end.weights)
    part = slice(*shard.shard_bounds(held_out.total, comm.rank, comm.size))
    right = network.accuracy(held_out.images[part], held_out.labels[part]) * (part.stop - part.start)
    if comm.rank == 0:
        save(folder, job.trial, end)
    return Result(
        trial=job.trial,
        setting=dict(job.setting),
        images=end.images,
        new_images=end.images - state.images,
        losses=losses,
        held_out=comm.allreduce(right) / held_out.total,
        diverged=not np.isfinite(end.weights).all(),
        seconds=time.perf_counter() - began,
    )


def _steps(comm, network, train, state: State, job: Job, losses: list, progress: Callable) -> State:
    """The training loop: plain SGD with momentum, at one learning rate."""
    weights, velocity, seen = state
    lr, momentum = np.float32(job.setting["lr"]), np.float32(job.setting["momentum"])
    since, total, shown_s = seen, 0.0, time.perf_counter()
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
            since, total = seen, 0.0
        if time.perf_counter() - shown_s > PUBLISH_EVERY_S:
            shown_s = time.perf_counter()
            progress(losses)
    return State(weights, velocity, seen)


def data() -> tuple[mnist.Split, mnist.Split]:
    """The images that trials train on, and those that choose among trials: both are parts of the training images.
    Fewer of both where there are few; at most a quarter is held out."""
    whole = mnist.load("train")
    held_out = min(HELD_OUT, whole.total // 4)

    def part(first: int, stop: int) -> mnist.Split:
        return mnist.Split(whole.images[first:stop], whole.labels[first:stop], first, stop - first)

    return part(0, min(IMAGES, whole.total - held_out)), part(whole.total - held_out, whole.total)


def ready() -> None:
    """Load the images, which takes seconds once, and import what trains."""
    data()
    mnist.load("test")


def order(seed: int, first: int, count: int, total: int = IMAGES) -> np.ndarray:
    """Which images come after `first` have been seen: every epoch in an order of its own, whatever the batch."""
    places = np.arange(first, first + count)
    epochs = places // total
    parts = [_epoch(seed, epoch, total)[places[epochs == epoch] % total] for epoch in np.unique(epochs).tolist()]
    return np.concatenate(parts)


@functools.lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, total: int) -> np.ndarray:
    return shard.epoch_permutation(total, seed, epoch)


def path(folder: Path, trial: int) -> Path:
    return Path(folder) / f"trial-{trial}.npz"


def save(folder: Path, trial: int, state: State) -> None:
    """Write a trial's state: whole, or not at all."""
    with replacing(path(folder, trial)) as temporary, open(temporary, "wb") as file:
        np.savez(file, **state._asdict())


def load(folder: Path, trial: int) -> State | None:
    """A trial's state; None for a trial that has not begun."""
    if not path(folder, trial).exists():
        return None
    with np.load(path(folder, trial)) as saved:
        return State(saved["weights"], saved["velocity"], int(saved["images"]))


def test_accuracy(folder: Path, trial: int) -> float:
    """A trial's accuracy on the test images, which choose nothing: call it once the search is over."""
    if (state := load(folder, trial)) is None:
        raise InputError(f"trial {trial} has left no weights in {folder}.")
    test, network = mnist.load("test"), FlatNetwork()
    network.set(state.weights)
    return network.accuracy(test.images, test.labels)


def trial_here(folder, trial: int, setting, images: int, together: bool):
    """A job of a search as this rank alone, or as all ranks `together`, with its curve published; its Result."""
    from ipyparallel.engine.datapub import publish_data
    from mpi4py import MPI

    def progress(losses: list) -> None:
        publish_data({"job": json.dumps([trial, images, losses])})

    return run(MPI.COMM_WORLD if together else MPI.COMM_SELF, folder, Job(trial, setting, images), progress)
