"""The schedules of a pipeline are idle as the formulas of the literature say, on paper and on emulated ranks."""

import sys
from functools import partial

import cloudpickle
import pytest
import torch
from exercises.answers import solution

from workshop_lib import ranks

from lessons.pipelines import judge, orders

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
RANKS, MICRO_BATCHES = (1, 2, 3, 4, 8), (1, 2, 4, 6, 16)
BOTH = (orders.gpipe, orders.one_f_one_b)


def all_ranks(schedule, p, m):
    return [schedule(rank, p, m) for rank in range(p)]


@pytest.mark.parametrize("schedule", BOTH, ids=lambda schedule: schedule.__name__)
def test_on_paper_the_bubble_is_that_of_the_formula(schedule):
    for p in RANKS:
        for m in MICRO_BATCHES:
            run = orders.on_paper(all_ranks(schedule, p, m))
            assert not run.stuck
            assert orders.bubble(run.spans) == pytest.approx(orders.bubble_formula(p, m))


@pytest.mark.parametrize("chunks", [2, 3])
def test_chunks_divide_the_bubble(chunks):
    for p, m in ((2, 2), (2, 8), (3, 6), (4, 4), (4, 8), (8, 16)):
        schedule = partial(orders.interleaved, chunks=chunks)
        run = orders.on_paper(all_ranks(schedule, p, m))
        assert not run.stuck
        assert orders.bubble(run.spans) == pytest.approx(orders.bubble_formula(p, m, chunks))


def further_ahead(schedule, times, rank, p, m):
    """The schedule with `times` as many forwards ahead for each rank behind this one."""
    order = schedule(rank, p, m)
    forwards, backwards = ([each for each in order if each[0] == kind] for kind in "FB")
    several = p if schedule is not orders.one_f_one_b else 0
    ahead = min(len(forwards), times * (p - 1 - rank) + several)
    turns = [each for pair in zip(forwards[ahead:], backwards, strict=False) for each in pair]
    return [*forwards[:ahead], *turns, *backwards[len(forwards) - ahead :]]


CHUNKED = partial(orders.interleaved, chunks=2)
ON_A_RANK = {
    "GPipe": (orders.gpipe, 1),
    "1F1B": (orders.one_f_one_b, 1),
    "1F1B, twice as far": (partial(further_ahead, orders.one_f_one_b, 2), 1),
    "two chunks": (CHUNKED, 2),
    "two chunks, half as far": (partial(further_ahead, CHUNKED, 1), 2),
}


def emulated_steps(make, message_s: float) -> dict:
    """On a rank: the spans of a step of each of ON_A_RANK. A forward of eight takes 11 ms, and a message this long."""
    from workshop_lib.machine import emulation

    from lessons.pipelines import pipeline

    comm = emulation.start("ethernet-10g").comm
    m, size = 8, comm.size
    batch = torch.zeros(m, 6), torch.arange(m) % 6
    emulation.current().set_network(24 / message_s)  # a message has 6 numbers
    spans = {}
    for name, (schedule, chunks) in ON_A_RANK.items():
        parts = [torch.nn.Linear(6, 6) for _ in range(size * chunks)]
        for part in parts:
            emulation.takes(part, forward_s=11e-3 / chunks, backward_s=22e-3 / chunks)
        stages = pipeline.stages_of_rank(make, parts, comm, (6,))
        for stage in stages:
            stage.load(*batch, m)
        spans[name] = pipeline.step(stages, schedule(comm.rank, size, m), comm).spans
    emulation.stop()
    return spans


@pytest.mark.full
def test_emulated_ranks_are_idle_as_the_formula_and_the_notebook_say():
    """The shares on 4 ranks with 8 micro-batches, on a fast network, and with messages half and all of a forward."""
    team, make = ranks.start(4), solution(judge.NOTEBOOK, "MyStage")
    idle = {}
    for message_s in (1e-9, 11e-3 / 4, 11e-3):
        by_rank = team.run(emulated_steps, make, message_s, timeout=60)
        idle[message_s] = {name: 100 * orders.bubble([each[name] for each in by_rank]) for name in ON_A_RANK}
    fast, half_a_chunk, slow = idle.values()
    for name, (_, chunks) in ON_A_RANK.items():
        assert fast[name] == pytest.approx(100 * orders.bubble_formula(4, 8, chunks), abs=0.5)
    assert round(half_a_chunk["two chunks, half as far"]) == 33 and round(half_a_chunk["two chunks"]) == 25
    assert [round(slow[name]) for name in ("GPipe", "1F1B", "1F1B, twice as far")] == [38, 51, 38]
