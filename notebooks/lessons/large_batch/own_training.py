"""Trains 07's network as many workers, with a learning rate and an optimizer of the learner's own.

07_large_batch passes the learner's schedule, and 07d_large_batch_optimizers the learner's optimizer as well.
"""

from collections.abc import Callable

import torch

from workshop_lib.machine.world import detect
from workshop_lib.training.backends.mpi import Mpi
from workshop_lib.training.data import mnist, shard
from workshop_lib.training.options import TrainOptions

BATCH = 64  # images per worker and step
MOMENTUM = 0.5


def steps_per_epoch(samples: int, workers: int) -> int:
    """Return the number of steps in an epoch of `samples` images, each step with a batch from every worker."""
    return shard.steps_per_epoch(samples, BATCH * workers, 1)


def train(
    rate: Callable[[int], float],
    workers: int,
    epochs: int,
    samples: int,
    make_optimizer: Callable | None = None,
    show: bool = True,
) -> tuple[torch.optim.Optimizer, float]:
    """Train `classic` as this many workers; return the optimizer, and the share of the test images that are right.

    All ranks call it, and it blocks.

    rate: returns the learning rate of a step; steps count from 0. make_optimizer: is called with the parameters; by
    default SGD with MOMENTUM. show: whether the network is tested after each epoch instead of only the last one, and
    rank 0 prints the accuracy.
    """
    world = detect()
    comm = world.mpi_comm()
    images = mnist.load("train")
    tested = mnist.load("test", None, comm.rank, comm.size)
    options = TrainOptions(network="classic", momentum=MOMENTUM, nesterov=False, emulate_workers=workers)
    replica = Mpi(world, torch.device("cpu")).replica(options, images, tested)
    if make_optimizer:
        replica.optimizer = make_optimizer(replica.model.parameters())
    step = 0
    accuracy = 0.0
    for epoch in range(1, epochs + 1):
        per_rank = BATCH * workers // comm.size
        for rows, total in shard.epoch_batches(samples, per_rank, comm.rank, comm.size, seed=1, epoch=epoch):
            replica.step(rows, total, rate(step))  # forward pass, backward pass, average, update
            step += 1
        if show or epoch == epochs:
            right, count = comm.allreduce(replica.evaluate()[1:])
            accuracy = float(right / count)
        if show and comm.rank == 0:
            last = rate(step - 1)
            print(f"epoch {epoch}: rate {last:.3g}, {accuracy:.1%} of the test images are right", flush=True)
    return replica.optimizer, accuracy
