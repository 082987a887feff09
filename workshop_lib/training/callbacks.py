"""Callbacks: plain objects that have any of the methods named here, on any rank.

on_start(info)   before the first step: world_size, rank, epochs, steps_per_epoch,
                 global_batch, backend
on_step(event)   after each step, so it must be cheap: epoch and step (1-based),
                 steps_per_epoch, loss (mean over this rank's samples, null without any),
                 lr, samples_per_s (over all ranks, estimated)
on_epoch(row)    after each epoch: its row of the run record
should_stop()    asked every few steps; when it is true on one rank, all ranks end after
                 the same step
"""

from collections.abc import Callable, Iterable

METHODS = ("on_start", "on_step", "on_epoch", "should_stop")


def methods_of(callbacks: Iterable) -> dict[str, list[Callable]]:
    """The methods that are present, by name."""
    callbacks = list(callbacks)
    return {
        name: [getattr(callback, name) for callback in callbacks if hasattr(callback, name)]
        for name in METHODS
    }
