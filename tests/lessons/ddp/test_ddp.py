"""The solutions of 05 equal one process."""

import sys

import cloudpickle
import numpy as np
import pytest
from exercises.answers import solution
from mpi4py import MPI

from workshop_lib.exercises.network import backward, batch, gradient_of, network

from lessons.ddp.process_group import join

pytestmark = pytest.mark.usefixtures("healthy")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
NOTEBOOK = "05_ddp"


def gradients(my_ddp, accumulate) -> list[np.ndarray]:
    """On a rank: the gradients after one step with each solution, and those of one process with all batches."""
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    join()
    comm = MPI.COMM_WORLD
    batches = [batch(rank, step) for rank in range(comm.size) for step in range(2)]
    mine = batches[2 * comm.rank : 2 * comm.rank + 2]
    by_hand = network(seed=1 + comm.rank)
    finish = my_ddp(by_hand)
    backward(by_hand, mine)
    finish()
    model = network()
    accumulate(DistributedDataParallel(model), mine, cross_entropy)
    return [gradient_of(by_hand), gradient_of(model), backward(network(), batches)]


def test_ddp_written_by_hand_equals_one_process(team):
    solutions = [solution(NOTEBOOK, name) for name in ("my_ddp", "accumulate")]
    for *found, whole in team.run(gradients, *solutions):
        for gradient in found:
            assert np.allclose(gradient, whole, rtol=0, atol=1e-12)
