"""The solutions of 01 do what MPI does, and what the notebook says of a broadcast."""

import numpy as np
import pytest
from judge.answers import solution
from mpi4py import MPI

from workshop_lib.lessons.mpi_basics import judge as check

pytestmark = pytest.mark.usefixtures("healthy")

RANKS = 4


def test_the_solutions_are_right(team):
    def on_rank(ring_allreduce, global_mean):
        comm = MPI.COMM_WORLD.Dup()
        values = np.random.default_rng(comm.rank).random(2 * comm.size + 1)
        total = np.empty_like(values)
        comm.Allreduce(values, total)
        uneven = values[: comm.rank]
        mean = np.concatenate(comm.allgather(uneven)).mean()
        return np.allclose(ring_allreduce(comm, values), total), np.isclose(global_mean(comm, uneven), mean)

    made = [solution(check.NOTEBOOK, name) for name in ("ring_allreduce", "global_mean")]
    assert team.run(on_rank, *made) == [(True, True)] * team.n


def test_after_a_broadcast_of_one_rank_alone_the_others_are_one_behind(team):
    def on_rank():
        comm = MPI.COMM_WORLD.Dup()
        if comm.rank == 0:
            comm.bcast("settings")
        after = comm.bcast("weights" if comm.rank == 0 else None)
        left_over = comm.bcast(None) if comm.rank > 0 else None
        return after, left_over

    assert team.run(on_rank) == [("weights", None)] + [("settings", "weights")] * (team.n - 1)
