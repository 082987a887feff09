"""The solutions of 05 equal one process, and sliders choose among the steps that ran."""

import sys

import cloudpickle
import numpy as np
import pytest
from drawn import check_layout
from exercises.answers import solution
from mpi4py import MPI

from workshop_lib.exercises.network import backward, batch, gradient_of, network

from lessons.ddp import sliders
from lessons.ddp.process_group import join

pytestmark = pytest.mark.usefixtures("healthy")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
NOTEBOOK = "05_ddp"


def gradients(my_ddp, my_buckets, accumulate) -> list[np.ndarray]:
    """On a rank: the gradients after one step with each solution, and those of one process with all batches."""
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    join()
    comm = MPI.COMM_WORLD
    batches = [batch(rank, step) for rank in range(comm.size) for step in range(2)]
    mine = batches[2 * comm.rank : 2 * comm.rank + 2]
    found = []
    for by_hand in (my_ddp, lambda model: my_buckets(model, 100)):
        model = network(seed=1 + comm.rank)
        finish = by_hand(model)
        backward(model, mine)
        finish()
        found.append(gradient_of(model))
    model = network()
    accumulate(DistributedDataParallel(model), mine, cross_entropy)
    return [*found, gradient_of(model), backward(network(), batches)]


def test_ddp_written_by_hand_equals_one_process(team):
    solutions = [solution(NOTEBOOK, name) for name in ("my_ddp", "my_buckets", "accumulate")]
    for *found, whole in team.run(gradients, *solutions):
        for gradient in found:
            assert np.allclose(gradient, whole, rtol=0, atol=1e-12)


def test_sliders_choose_among_the_steps_that_ran():
    def step(end):
        return {"backward": 16.0, "ready": [8.0, 16.0], "messages": [[8.0, end]], "end": end}

    times_at = {
        gb_per_s: [{"after": step(40.0), "DDP, 4 MiB": step(20.0), "DDP, 25 MiB": step(end)}]
        for gb_per_s, end in ((1, 40.0), (10, 30.0))
    }
    shown = sliders.overlap([times_at] * 2, "ethernet-10g")
    assert shown.sentence == "DDP, 4 MiB, at 1 GB/s: saves 50 %"
    shown.bandwidth.value, shown.way.value = 10, "DDP, 25 MiB"
    assert shown.sentence == "DDP, 25 MiB, at 10 GB/s: saves 25 %"
    _, figure = shown.answer()
    assert "emulated on ethernet-10g" in figure.axes[-1].get_xlabel()
    check_layout(figure)
