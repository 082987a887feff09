"""Callbacks: plain objects with any of these methods, on any rank, and the types that the methods receive.

on_phase(text)   called before each phase of starting that takes a while, such as "reading MNIST"
on_start(info)   called before the first step with a RunInfo
on_step(event)   called after each step with a StepEvent, so it must be cheap
on_epoch(row)    called after each epoch with its row of the run record (record.EpochRow)
should_stop()    called every few steps; if it is true on one rank, all ranks end after the same step
"""

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypedDict

from workshop_lib.training.backends.base import Communicator

METHODS = ("on_phase", "on_start", "on_step", "on_epoch", "should_stop")
KEPT = 64  # number of steps that a trace keeps


def methods_of(callbacks: Iterable) -> dict[str, list[Callable]]:
    """Return the methods that the callbacks have, by name."""
    callbacks = list(callbacks)
    return {name: [getattr(callback, name) for callback in callbacks if hasattr(callback, name)] for name in METHODS}


class RunInfo(TypedDict):
    """What on_start receives."""

    world_size: int
    rank: int
    epochs: int
    steps_per_epoch: int
    global_batch: int
    backend: str
    cores: str  # what the ranks on rank 0's host compute on, in words
    oversubscribed: bool  # whether ranks share cores
    machine: str | None  # the machine that the ranks emulate, if their times are emulated
    clock_origin_s: float  # time.perf_counter() of this rank at the zero of its trace


class StepValues(TypedDict):
    """The values that a StepEvent always holds. epoch and step count from 1."""

    epoch: int
    step: int
    steps_per_epoch: int
    lr: float
    samples_per_s: float  # over all ranks, estimated


class StepEvent(dict):
    """What on_step receives: StepValues, and three values that are computed only when event[name] is read.

    They are computed late because on a GPU this waits until the step is done. Read them before the next step begins:

    loss     mean over this rank's samples of the step, None if it has no samples
    sums     [loss, correct answers, samples] of this rank, summed over the epoch so far
    trace    the StepTraces of the last steps before this one, oldest first
    """

    def __init__(self, values: StepValues, later: dict[str, Callable]):
        super().__init__(values)
        self.later = later

    def __missing__(self, name: str):
        return self.later[name]()


class StepTrace(NamedTuple):
    """One step of the run on one rank, in seconds since a moment that all ranks share.

    collectives: when this rank entered and left each blocking collective. No rank leaves such a collective before the
    last rank has entered it. They are the averaging of the gradients and, every few steps, the question whether to
    stop. There are none if communication overlaps with the backward pass.
    """

    step: int
    start_s: float
    end_s: float
    collectives: tuple[tuple[float, float], ...]


class Tracer:
    """Traces the last KEPT steps, on a clock that all ranks share. All ranks create it together.

    The zero of the clock is the moment at which a collective ended. On one host all ranks read the same clock, so one
    rank's reading is the zero for all of them. Between hosts, the zeros differ by as much as the moments at which their
    ranks left that collective.
    """

    def __init__(self, ranks: Communicator):
        self.last: deque[StepTrace] = deque(maxlen=KEPT)
        ranks.allgather(None)
        here = socket.gethostname()
        readings = ranks.allgather((here, time.perf_counter()))
        self.clock_origin_s = next(reading_s for host, reading_s in readings if host == here)

    def add(self, step: int, start: float, collectives: list[tuple[float, float]]) -> float:
        """Record a step that ends now, and return the current time. All times are from time.perf_counter()."""
        now = time.perf_counter()
        zero = self.clock_origin_s
        spans = tuple((begin - zero, end - zero) for begin, end in collectives)
        self.last.append(StepTrace(step, start - zero, now - zero, spans))
        return now
