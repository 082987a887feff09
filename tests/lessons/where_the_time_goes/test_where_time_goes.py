"""What 08b shows of traces, of the profiler's files, and of jobs that are bound to cores."""

import json

import pytest
from drawn import check_layout, texts

from workshop_lib.errors import InputError

from lessons.where_the_time_goes import bound_jobs, figures, operations, tracing


def trace(*steps: tuple) -> list[tuple]:
    """A rank's trace: (step, start, end, [the span of its Allreduce])."""
    return [(step, start_s, end_s, [(came_s, end_s)]) for step, start_s, came_s, end_s in steps]


def test_arrivals_are_those_of_steps_that_all_ranks_have_each_by_its_own_clock():
    traces = [
        trace((3, 100, 101, 104), (4, 104, 105, 107)),
        trace((2, 98, 99, 101), (3, 101, 103, 104), (4, 104, 106, 107)),
    ]
    assert tracing.arrivals(traces) == ([[101, 103], [105, 106]], [[104, 104], [107, 107]], 7)
    behind = [traces[0], tracing.shifted(traces[1], -5)]
    assert tracing.arrivals(behind) == ([[101, 98], [105, 101]], [[104, 99], [107, 102]], 7)


def event(name: str, start_ms: float, ms: float, thread: int = 1) -> dict:
    return {"ph": "X", "name": name, "ts": 5000 + 1000 * start_ms, "dur": 1000 * ms, "tid": thread}


EVENTS = [
    {"ph": "M", "name": "process_name"},
    event("ProfilerStep#5", 0, 20),
    event("aten::conv2d", 1, 4),
    event("aten::add", 2, 1),
    event("autograd::engine::evaluate_function: ConvolutionBackward0", 6, 8),
    event("aten::convolution_backward", 6, 5),
    event("c10d::allreduce_", 12, 2),
    event("aten::wait_tensor", 12.5, 1),
    event("gloo:all_reduce", 9, 4, thread=2),
    event("aten::add_", 16, 1),
]


def test_messages_are_exposed_while_the_main_thread_computes_nothing(tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": EVENTS}))
    step = operations.read(file)
    assert step.forward_ms == [(1, 5), (16, 17)], "what is inside another operation counts once"
    assert step.backward_ms == [(6, 11)], "waiting inside a collective isn't computing"
    assert step.messages_ms == [(9, 13)]
    assert (step.exposed_ms(), step.message_ms(), step.end_ms) == (2, 4, 20)
    figure = figures.beside_messages({"ddp": file})
    assert texts(figure) == ["2.0 of 4.0 ms exposed"]
    check_layout(figure)


def test_a_trace_without_a_step_is_refused(tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": EVENTS[2:]}))
    with pytest.raises(InputError, match=r"trace.json has no step: record one with"):
        operations.read(file)


def test_only_a_bound_job_gives_up_the_workshops_mapping():
    free, bound = (bound_jobs.PlacedJob(1, bound, 2).command(100) for bound in (False, True))
    assert "OMP_NUM_THREADS=2" in free and "OMP_NUM_THREADS=2" in bound
    assert "PRTE_MCA_hwloc_default_binding_policy=core" in bound
    assert not [word for word in free if "PRTE" in word]
