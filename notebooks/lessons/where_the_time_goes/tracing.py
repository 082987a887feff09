"""When ranks arrive at their collectives, which 08b_where_the_time_goes records and hands to an exercise."""

import time

from workshop_lib.training.options import TrainOptions
from workshop_lib.training.trainer import train


class Trace:
    """Keeps the traces of the last steps, and makes this rank late_ms late in each."""

    def __init__(self, late_ms: float):
        self.late_ms = late_ms
        self.last: list = []

    def on_step(self, event: dict) -> None:
        time.sleep(self.late_ms / 1000)
        self.last = event["trace"]


def traced(steps: int, late_ms: float = 0) -> list:
    """Train for some steps, and return this rank's traces of the last ones. The rank sleeps for late_ms in each step.

    Every rank calls it. It blocks, and each step has one allreduce.
    """
    trace = Trace(late_ms)
    train(TrainOptions(backend="mpi", max_steps=steps), callbacks=[trace])
    return trace.last


def arrivals(traces: list[list]) -> tuple[list[list[float]], list[list[float]], float]:
    """When ranks arrived at the `Allreduce` of each step and left it, both [step][rank], and the seconds of all steps.

    Moments are by each rank's own clock, and the seconds by rank 0's. Steps that some rank lacks are left out.
    """
    spans_of = [{step: spans[0] for step, _, _, spans in trace} for trace in traces]
    steps = sorted(set.intersection(*map(set, spans_of)))
    arrived_s = [[spans[step][0] for spans in spans_of] for step in steps]
    left_s = [[spans[step][1] for spans in spans_of] for step in steps]
    times = [(start_s, end_s) for step, start_s, end_s, _ in traces[0] if step in steps]
    return arrived_s, left_s, times[-1][1] - times[0][0]


def shifted(trace: list, ahead_s: float) -> list[tuple]:
    """The trace that a rank would have recorded by a clock which is ahead by these seconds: an emulated host."""
    return [
        (step, start_s + ahead_s, end_s + ahead_s, [(came_s + ahead_s, left_s + ahead_s) for came_s, left_s in spans])
        for step, start_s, end_s, spans in trace
    ]
