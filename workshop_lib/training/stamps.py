"""When each step of this rank began and ended, and when it met the other ranks: a dashboard's raw data."""

import socket
import time
from collections import deque

from workshop_lib.training.backends.base import Backend

KEPT = 64
# What happened in one step on one rank, in seconds since a moment that all ranks share:
# (step of the run, start, end, ((start, end) of each meeting, …)). A meeting is a blocking collective,
# which no rank leaves before the last one has come: the averaging, and every few steps the question
# whether to stop. There are none where communication overlaps with backward.
Stamp = tuple[int, float, float, tuple[tuple[float, float], ...]]


class Stamps:
    """The last KEPT steps, on a clock that all ranks share. All ranks create it together.

    Its zero is the moment at which a collective ended. On one host all ranks read the same clock, so one
    rank's reading is the zero for all; between hosts, zeros differ by what their ranks differed in leaving
    that collective.
    """

    def __init__(self, backend: Backend):
        self.last: deque[Stamp] = deque(maxlen=KEPT)
        backend.allgather(None)
        here = socket.gethostname()
        readings = backend.allgather((here, time.perf_counter()))
        self.clock_origin_s = next(reading_s for host, reading_s in readings if host == here)

    def add(self, step: int, start: float, meetings: list[tuple[float, float]]) -> float:
        """Note a step that ends now; start and meetings are time.perf_counter(), as is what it returns."""
        now, zero = time.perf_counter(), self.clock_origin_s
        spans = tuple((begin - zero, end - zero) for begin, end in meetings)
        self.last.append((step, start - zero, now - zero, spans))
        return now
