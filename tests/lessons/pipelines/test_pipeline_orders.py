"""The schedules of a pipeline: what the simulator says of them is what the literature's formulas say, and PyTorch lists
the same operations."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed import pipelining

from workshop_lib.lessons.pipelines import orders
from workshop_lib.lessons.thousand_ranks import pretend

RANKS, MICRO_BATCHES = (1, 2, 3, 4, 8), (1, 2, 4, 6, 16)
BOTH = (orders.gpipe, orders.one_f_one_b)


def all_ranks(schedule, p, m):
    return [schedule(rank, p, m) for rank in range(p)]


@pytest.mark.parametrize("schedule", BOTH, ids=lambda schedule: schedule.__name__)
def test_the_bubble_is_that_of_the_formula_whatever_a_backward_takes(schedule):
    for p in RANKS:
        for m in MICRO_BATCHES:
            for backward in (1.0, 2.0, 3.5):
                run = orders.simulate(all_ranks(schedule, p, m), 1.0, backward)
                assert not run.stuck
                assert orders.bubble(run.spans) == pytest.approx(orders.bubble_formula(p, m))


def test_1f1b_keeps_what_it_says_and_gpipe_keeps_everything():
    for p in RANKS:
        for m in MICRO_BATCHES:
            assert [orders.most_alive(o) for o in all_ranks(orders.gpipe, p, m)] == [m] * p
            kept = [orders.most_alive(o) for o in all_ranks(orders.one_f_one_b, p, m)]
            assert kept == [min(m, p - rank) for rank in range(p)]


@pytest.mark.parametrize("chunks", [2, 3])
def test_chunks_divide_the_bubble(chunks):
    for p, m in ((2, 2), (2, 8), (3, 6), (4, 4), (4, 8), (8, 16)):
        schedule = partial(orders.interleaved, chunks=chunks)
        run = orders.simulate(all_ranks(schedule, p, m))
        assert not run.stuck
        assert orders.bubble(run.spans) == pytest.approx(orders.bubble_formula(p, m, chunks))


def test_with_messages_that_take_time_two_forwards_ahead_are_better_than_one():
    """The shares that the notebook names: 4 ranks, 8 micro-batches, 2 chunks, messages half as long as a forward."""
    p, m = 4, 8
    idle = []
    for ahead in (1, 2):
        interleaved = []
        for rank in range(p):
            order = orders.interleaved(rank, p, m, 2)
            forwards = [each for each in order if each[0] == "F"]
            backwards = [each for each in order if each[0] == "B"]
            interleaved.append(orders.in_turn(forwards, backwards, ahead * (p - 1 - rank) + p))
        run = orders.simulate(interleaved, message=0.5)
        assert not run.stuck
        idle.append(round(orders.bubble(run.spans), 2))
    assert idle == [0.33, 0.25]


def test_1f1b_twice_as_far_ahead_hides_messages_as_gpipe_does_and_keeps_more():
    """The shares in the answer: 4 ranks, 64 micro-batches, messages as long as a forward."""

    def twice_as_far(rank, ranks, m):
        order = orders.gpipe(rank, ranks, m)
        return orders.in_turn(order[:m], order[m:], 2 * (ranks - 1 - rank))

    schedules = (orders.one_f_one_b, orders.gpipe, twice_as_far)
    idle = [orders.bubble(orders.simulate(all_ranks(each, 4, 64), message=1).spans) for each in schedules]
    assert [round(share, 2) for share in idle] == [0.36, 0.07, 0.07]
    assert [orders.most_alive(order) for order in all_ranks(twice_as_far, 4, 64)] == [7, 5, 3, 1]


def test_a_step_like_a_measured_one_takes_its_times():
    spans = orders.simulate(all_ranks(orders.gpipe, 2, 4), [1.0, 3.0], [2.0, 6.0]).spans
    assert orders.simulated(orders.gpipe, 2, 4, like=spans) == spans
    [row] = orders.idle_rows(orders.gpipe, {4: spans}).values()
    assert row["formula"] == "20%" and row["measured"] == row["simulated, with these stages' times"]


def test_micro_batches_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="5 micro-batches don't divide by 2 ranks: take a multiple of 2"):
        orders.interleaved(0, 2, 5, 2)


def test_no_operation_starts_before_what_it_needs():
    p, m, chunks = 3, 6, 2
    run = orders.simulate(all_ranks(partial(orders.interleaved, chunks=chunks), p, m))
    of_stage = {(s.kind, s.micro_batch, s.chunk * p + rank): s for rank, row in enumerate(run.spans) for s in row}
    last = p * chunks - 1
    assert len(of_stage) == 2 * m * p * chunks
    for (kind, i, stage), span in of_stage.items():
        if kind == "F" and stage > 0:
            assert span.start >= of_stage["F", i, stage - 1].end
        if kind == "B":
            assert span.start >= of_stage["F", i, stage].end
            assert stage == last or span.start >= of_stage["B", i, stage + 1].end


def test_the_slowest_stage_sets_the_pace():
    m, slow = 50, 3.0
    run = orders.simulate(all_ranks(orders.one_f_one_b, 3, m), [1.0, slow, 1.0], [2.0, 2 * slow, 2.0])
    total = max(span.end for row in run.spans for span in row)
    assert m * 3 * slow < total < (m + 3) * 3 * slow


def test_with_sends_that_wait_1f1b_never_ends_and_gpipe_does():
    for p in (2, 3, 4):
        assert not orders.simulate(all_ranks(orders.gpipe, p, 4), blocking=True).stuck
        stuck = orders.simulate(all_ranks(orders.one_f_one_b, p, 4), blocking=True).stuck
        assert set(stuck) == set(range(p))
        assert stuck[p - 1] == f"rank {p - 1} can't send B 0, because rank {p - 2} isn't receiving it"


def test_who_waits_for_what_is_said():
    run = orders.simulate([[("F", 0), ("B", 0)], [("F", 0)]])
    assert run.stuck == {0: "rank 0 waits for B 0 from rank 1"}
    run = orders.simulate([[("B", 0), ("F", 0)]])
    assert run.stuck == {0: "rank 0 goes backward with micro-batch 0 before it went forward with it"}


def listed(schedule, rank, p) -> list[tuple]:
    """PyTorch's operations of this rank, in our words."""
    ops = [op for op in schedule.pipeline_order[rank] if op is not None and op.computation_type.value in ("F", "B")]
    several = isinstance(schedule, pipelining.ScheduleInterleaved1F1B)
    return [(op.computation_type.value, op.microbatch_index, *([op.stage_index // p] if several else [])) for op in ops]


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (3, 6), (8, 8)])
def test_pytorch_lists_the_same_operations(p, m):
    """Its list for 1F1B begins with micro-batch 1 on the last rank; what it does is in test_pipelines.py."""
    pretend.join_fake_group(0, p)
    try:

        def stage(number, stages):
            return pipelining.PipelineStage(torch.nn.Linear(1, 1), number, stages, torch.device("cpu"))

        loss = torch.nn.functional.mse_loss
        theirs = {
            orders.gpipe: pipelining.ScheduleGPipe(stage(0, p), m, loss_fn=loss),
            partial(orders.interleaved, chunks=2): pipelining.ScheduleInterleaved1F1B(
                [stage(0, 2 * p), stage(p, 2 * p)], m, loss_fn=loss
            ),
        }
        for ours, schedule in theirs.items():
            for rank in range(p):
                assert listed(schedule, rank, p) == list(ours(rank, p, m))
    finally:
        dist.destroy_process_group()
