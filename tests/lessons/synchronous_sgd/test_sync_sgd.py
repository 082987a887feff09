"""The solutions of 02 train as one process does with the global batch."""

import sys
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
import torch
from exercises.answers import solution
from mpi4py import MPI

from workshop_lib.exercises.network import backward, batch, network, weights_of

from lessons.synchronous_sgd import judge as check
from lessons.synchronous_sgd import long_run

pytestmark = pytest.mark.usefixtures("healthy")

RANKS = 3
STEPS = 3
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file


def trained(broadcast_weights, train_epoch, *averages) -> list[np.ndarray]:
    """On a rank: the weights after a few steps with each way to average, and those of one process."""
    comm = MPI.COMM_WORLD
    found = []
    for average in averages:
        model = network(seed=1 + comm.rank)
        broadcast_weights(model, comm)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
        train_epoch(model, optimizer, schedule, [batch(comm.rank, step) for step in range(STEPS)], average, comm)
        found.append(weights_of(model))
    model = network()
    for step in range(STEPS):
        backward(model, [batch(rank, step) for rank in range(comm.size)])
        for p in model.parameters():
            p.data -= 0.1 / 3 * p.grad  # the schedule begins with a third of the rate
    return [*found, weights_of(model)]


def test_what_a_learner_writes_trains_as_one_process_with_the_global_batch(team):
    names = ("broadcast_weights", "train_epoch", "average_gradients", "average_in_one_message")
    for *found, alone in team.run(trained, *(solution(check.NOTEBOOK, name) for name in names), timeout=60):
        for weights in found:
            assert np.allclose(weights, alone, rtol=0, atol=1e-12)


def test_the_accuracy_counts_the_answers_of_all_ranks():
    images = np.zeros((4, 28, 28), dtype=np.uint8)
    always_0 = lambda images: torch.eye(1, 10).repeat(len(images), 1)  # noqa: E731
    test = SimpleNamespace(images=images, labels=np.array([0, 0, 0, 7]), total=8)
    two_ranks = SimpleNamespace(allreduce=lambda right: 2 * right)
    assert long_run.accuracy(always_0, test, two_ranks) == 0.75
