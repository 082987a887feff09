"""The timeline that Horovod records: read and counted, from a sample of a real recording."""

import json

import pytest

from lessons.horovod_pytorch import figures as horovod_timeline
from lessons.horovod_pytorch.figures import COPY, NEGOTIATION, QUEUE, TRANSFER

# (phase, tensor or "" for a cycle, name, microseconds): two tensors on 2 ranks without the response cache,
# of which rank 1 was late; cut from what Horovod 0.28.1 wrote.
RECORDED = [
    ("i", "", "CYCLE_START", 542861),
    ("B", "28.bias", "NEGOTIATE_ALLREDUCE", 542878),
    ("X", "28.bias", "0", 542881),
    ("B", "28.weight", "NEGOTIATE_ALLREDUCE", 542884),
    ("X", "28.weight", "0", 542885),
    ("i", "", "CYCLE_START", 560082),
    ("i", "", "CYCLE_START", 572014),
    ("X", "28.bias", "1", 584033),
    ("E", "28.bias", "", 584034),
    ("B", "28.bias", "ALLREDUCE", 584065),
    ("B", "28.bias", "MPI_ALLREDUCE", 584070),
    ("E", "28.bias", "", 600009),
    ("E", "28.bias", "", 600034),
    ("i", "", "CYCLE_START", 600049),
    ("i", "", "CYCLE_START", 601136),
    ("X", "28.weight", "1", 601207),
    ("E", "28.weight", "", 601208),
    ("B", "28.weight", "ALLREDUCE", 615286),
    ("B", "28.weight", "MEMCPY_IN_FUSION_BUFFER", 615342),
    ("E", "28.weight", "", 615391),
    ("B", "28.weight", "MPI_ALLREDUCE", 615404),
    ("E", "28.weight", "", 639506),
    ("B", "28.weight", "MEMCPY_OUT_FUSION_BUFFER", 639562),
    ("E", "28.weight", "", 639617),
    ("E", "28.weight", "", 639653),
]
A_STEP_US = 200_000


def write(path, steps=2):
    """The recording as Horovod writes it, its step repeated."""
    numbers = {"28.bias": 1, "28.weight": 2}
    events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1}}]
    for tensor, pid in numbers.items():
        about = {"process_name": {"name": f"allreduce.{tensor}"}, "process_sort_index": {"sort_index": pid}}
        events += [{"ph": "M", "name": name, "pid": pid, "args": args} for name, args in about.items()]
    for step in range(steps):
        for phase, tensor, name, at in RECORDED:
            event = {"ph": phase, "ts": at + step * A_STEP_US}
            events.append(event | ({"name": name} if name else {}) | ({"pid": numbers[tensor]} if tensor else {}))
    path.write_text(json.dumps(events))
    return path


@pytest.fixture
def recorded(tmp_path):
    return horovod_timeline.read(write(tmp_path / "timeline.json"))


def test_every_phase_of_a_tensor_in_a_step_that_begins_with_the_first_one(recorded):
    assert recorded.steps == 2 and len(recorded.cycles_ms) == 10
    step = recorded.of_step(1)
    phases = [(s.phase, round(s.end_ms - s.start_ms, 3)) for s in step.spans if s.tensor == "28.weight"]
    assert [phase for phase, _ in phases] == [NEGOTIATION, QUEUE, QUEUE, COPY, QUEUE, TRANSFER, QUEUE, COPY, QUEUE]
    assert [ms for phase, ms in phases if phase == NEGOTIATION] == [58.324]
    assert [ms for phase, ms in phases if phase == TRANSFER] == [24.102]
    assert min(span.start_ms for span in step.spans) == 0
    assert max(span.end_ms for span in step.spans) == pytest.approx(96.775)


def test_the_typical_step_has_the_median_length():
    lengths_ms = enumerate((9.0, 2.0, 4.0))
    spans = [horovod_timeline.TensorSpan("a", step, TRANSFER, 10.0 * step, 10.0 * step + ms) for step, ms in lengths_ms]
    assert horovod_timeline.HorovodTimeline(spans).typical().spans == [
        horovod_timeline.TensorSpan("a", 2, TRANSFER, 0, 4.0)
    ]


def test_when_each_rank_was_ready(recorded):
    ready = {(r.tensor, r.rank): round(r.at_ms, 3) for r in recorded.of_step(0).ready}
    bias, weight = "28.bias", "28.weight"
    assert ready == {(bias, 0): 0.003, (weight, 0): 0.007, (bias, 1): 41.155, (weight, 1): 58.329}


def test_tensors_that_travel_together_are_one_allreduce():
    times_ms = {"a": (1.0, 3.0), "b": (1.1, 3.1), "c": (4.0, 5.0)}
    spans = [horovod_timeline.TensorSpan(tensor, 0, TRANSFER, *times) for tensor, times in times_ms.items()]
    assert horovod_timeline.HorovodTimeline(spans).allreduces() == [(1.0, 3.1), (4.0, 5.0)]


def test_settings_are_compared_by_the_spread_of_their_steps_and_their_allreduces(recorded):
    measured = horovod_timeline.Measured([1.0, 2.0, 3.0], recorded)
    assert measured.median_ms == 2.0
    table = horovod_timeline.compare({"default": measured})
    assert table.loc["default"].tolist() == ["2.00", "1.20 to 2.80", "2.0"]
