"""The solutions of 01 do what MPI does, and take as long as the notebook's formulas say."""

import numpy as np
import pytest
from exercises.answers import solution
from mpi4py import MPI

from workshop_lib.machine.catalogue import emulated_machine

from lessons.mpi_basics import judge as check

pytestmark = pytest.mark.usefixtures("healthy")

RANKS = 4


def ring(reduce_scatter, allgather):
    """The allreduce that the notebook makes of these two halves."""

    def ring_allreduce(comm, values):
        chunks = [chunk.copy() for chunk in np.array_split(values, comm.size)]
        reduce_scatter(comm, chunks)
        allgather(comm, chunks)
        return np.concatenate(chunks)

    return ring_allreduce


def test_the_solutions_are_right(team):
    def on_rank(ring_allreduce, global_mean):
        comm = MPI.COMM_WORLD.Dup()
        values = np.random.default_rng(comm.rank).random(2 * comm.size + 1)
        total = np.empty_like(values)
        comm.Allreduce(values, total)
        uneven = values[: comm.rank]
        mean = np.concatenate(comm.allgather(uneven)).mean()
        return np.allclose(ring_allreduce(comm, values), total), np.isclose(global_mean(comm, uneven), mean)

    halves = [solution(check.NOTEBOOK, name) for name in ("reduce_scatter", "allgather")]
    found = team.run(on_rank, ring(*halves), solution(check.NOTEBOOK, "global_mean"))
    assert found == [(True, True)] * team.n


def test_both_allreduces_take_what_their_formulas_say_on_emulated_ranks(team):
    nbytes = 8_000 * team.n

    def on_rank(ring_allreduce):
        from workshop_lib.machine.emulation import session

        from lessons.mpi_basics import allreduces

        session.start("ethernet-10g")
        try:
            ways = (ring_allreduce, allreduces.through_rank_0)
            return [allreduces.seconds(MPI.COMM_WORLD, way, [nbytes])[nbytes] for way in ways]
        finally:
            session.stop()

    link = emulated_machine("ethernet-10g").between
    ring_s = 2 * (team.n - 1) * (link.latency_s + nbytes * link.s_per_byte / team.n)
    through_rank_0_s = 2 * link.latency_s + 2 * (team.n - 1) * nbytes * link.s_per_byte
    halves = [solution(check.NOTEBOOK, name) for name in ("reduce_scatter", "allgather")]
    for found in team.run(on_rank, ring(*halves)):
        assert found == [pytest.approx(ring_s, rel=1e-9), pytest.approx(through_rank_0_s, rel=1e-9)]
