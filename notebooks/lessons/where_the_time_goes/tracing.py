"""When ranks arrive at their collectives, which 08b_where_the_time_goes records and hands to an exercise."""

import math
import time

from workshop_lib.training.options import TrainOptions
from workshop_lib.training.timeline import timeline
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


def arrivals(traces: list[list]) -> tuple[list[list[float]], float]:
    """When each rank arrived at the `Allreduce` of each step, [step][rank], and the seconds that all steps took.

    Moments are in seconds since the first of these steps began. Steps that some rank lacks are left out.
    """
    steps = timeline(traces)
    if not steps.steps:
        return [], math.nan
    first_s = steps.steps[0][1]
    by_step = [{step: spans for step, _, _, spans in trace} for trace in traces]
    arrived_s = []
    for step, _ in steps.steps:
        arrived_s.append([spans_of[step][0][0] - first_s for spans_of in by_step])
    return arrived_s, steps.seconds
