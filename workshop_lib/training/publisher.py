"""What a rank of a notebook does while it trains: it publishes its progress, and stops when somebody asks it to."""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from .progress import PublishedPoint, PublishedRun

if TYPE_CHECKING:
    from .record import RunRecord

POINTS_SENT = 8


class Publisher:
    """Training callbacks that send progress to the notebook, two to four times a second.

    All ranks publish after the same steps: those divisible by a power of two that fits their common pace. So the
    notebook compares the same steps of all ranks, and all ranks pay for publishing at the same moment instead of
    waiting for each rank in turn. Any other step costs a comparison and a look at the clock. If the pace drops for
    long, ranks publish by the clock until a new power of two fits.

    stop_asked: whether somebody has asked this rank to stop.
    """

    def __init__(self, stop_asked: Callable[[], bool], hz: float = 4.0):
        from ipyparallel.engine.datapub import publish_data

        self.publish = publish_data
        self.should_stop = stop_asked
        self.every_s = 1 / hz
        self.every_steps = 1
        self.epochs: list[dict] = []
        self.points: deque[PublishedPoint] = deque(maxlen=POINTS_SENT)

    def on_phase(self, text):
        self.publish({"phase": text, "stops_when_asked": True})

    def on_start(self, info):
        self.publish({"info": info, "stops_when_asked": True})
        self._start_counting()

    def on_step(self, event):
        self.event = event
        self.steps += 1
        if event["step"] % self.every_steps == 0 or time.monotonic() - self.since > 4 * self.every_s:
            self.publish(self._progress())
            seconds_a_step = (time.monotonic() - self.since) / self.steps
            self.every_steps = 2 ** max(0, int(math.log2(self.every_s / seconds_a_step)))
            self._start_counting()

    def on_epoch(self, row):
        self.epochs.append(row)
        self.publish(self._progress() | {"epochs": list(self.epochs)})
        self._start_counting()

    def _start_counting(self):
        self.steps = 0
        self.since = time.monotonic()

    def _progress(self) -> PublishedRun:
        """This rank's state after its last step, with a few earlier points in case the notebook misses a message."""
        event = self.event
        done = (event["epoch"] - 1) * event["steps_per_epoch"] + event["step"]
        if not self.points or self.points[-1]["done"] < done:
            self.points.append(cast(PublishedPoint, {"done": done, **event, "sums": event["sums"]}))
        return {"points": list(self.points), "trace": event["trace"]}


def train_here(options, stop_asked: Callable[[], bool]) -> "RunRecord":
    """Train on this rank and publish its progress; return the run record."""
    publisher = Publisher(stop_asked)
    publisher.on_phase("importing PyTorch")
    from workshop_lib.training.trainer import train

    return train(options, callbacks=[publisher])
