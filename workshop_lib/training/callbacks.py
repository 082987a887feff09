"""Callbacks: plain objects that have any of the methods named here, on any rank.

on_start(info)   before the first step: world_size, rank, epochs, steps_per_epoch,
                 global_batch, backend, oversubscribed (whether ranks share cores), and
                 clock_origin_s (time.perf_counter() of this rank at the zero of the stamps)
on_step(event)   after each step, so it must be cheap: a StepEvent
on_epoch(row)    after each epoch: its row of the run record
should_stop()    asked every few steps; when it is true on one rank, all ranks end after
                 the same step
"""

from collections.abc import Callable, Iterable

METHODS = ("on_start", "on_step", "on_epoch", "should_stop")


class StepEvent(dict):
    """What on_step gets. Always there: epoch and step (1-based), steps_per_epoch, lr,
    samples_per_s (over all ranks, estimated). Worked out only when read with event[name],
    since on a GPU that waits for the step to be done; to be read before the next step begins:

    loss     mean over this rank's samples of the step, None without any
    sums     [loss, correct answers, samples] of this rank, summed over the epoch so far
    stamps   a Stamp (see stamps.py) of each of the last steps before this one, oldest first
    """

    def __init__(self, values: dict, later: dict[str, Callable]):
        super().__init__(values)
        self.later = later

    def __missing__(self, name: str):
        return self.later[name]()


def methods_of(callbacks: Iterable) -> dict[str, list[Callable]]:
    """The methods that are present, by name."""
    callbacks = list(callbacks)
    return {name: [getattr(callback, name) for callback in callbacks if hasattr(callback, name)] for name in METHODS}
