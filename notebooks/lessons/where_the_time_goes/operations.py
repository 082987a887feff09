"""What a trace of PyTorch's profiler says about one step: when the main thread computes, and when messages travel."""

import json
from os import PathLike
from typing import NamedTuple

from workshop_lib.errors import InputError

Span = tuple[float, float]  # start and end, in milliseconds since the step began
BACKWARD = "autograd::engine::evaluate_function"
MESSAGE = "gloo:"
COLLECTIVE = "c10d::"  # the main thread starts a collective, and may wait in there


class Operations(NamedTuple):
    """One step of one rank. No two spans of a list overlap."""

    forward_ms: list[Span]  # computing outside the backward pass, including the optimizer's update
    backward_ms: list[Span]
    messages_ms: list[Span]
    end_ms: float

    def message_ms(self) -> float:
        """How long messages travel."""
        return _total(self.messages_ms)

    def exposed_ms(self) -> float:
        """How long messages travel while the main thread computes nothing."""
        computing = merged([*self.forward_ms, *self.backward_ms])
        return _total(without(self.messages_ms, computing))


def read(path: str | PathLike) -> Operations:
    """The operations in a trace that the profiler's `export_chrome_trace` wrote for one step on a CPU.

    Raises InputError if the trace has no step.
    """
    with open(path, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    steps = [event for event in events if event["name"].startswith("ProfilerStep")]
    if not steps:
        raise InputError(f"{path} has no step: record one with the profiler's `schedule`, and call its `step()`.")
    step = steps[0]
    main = [event for event in events if event["tid"] == step["tid"]]

    def spans(chosen: list[dict]) -> list[Span]:
        starts_us = [event["ts"] - step["ts"] for event in chosen]
        return merged(
            [
                (start_us / 1e3, (start_us + event["dur"]) / 1e3)
                for start_us, event in zip(starts_us, chosen, strict=True)
            ]
        )

    collectives = spans([event for event in main if event["name"].startswith(COLLECTIVE)])
    computing = without(spans([event for event in main if event["name"].startswith("aten::")]), collectives)
    in_backward = spans([event for event in main if event["name"].startswith(BACKWARD)])
    forward = without(computing, in_backward)
    return Operations(
        forward_ms=forward,
        backward_ms=without(computing, forward),
        messages_ms=spans([event for event in events if event["name"].startswith(MESSAGE)]),
        end_ms=step["dur"] / 1e3,
    )


def merged(spans: list[Span]) -> list[Span]:
    """The same moments as spans that don't overlap, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def without(spans: list[Span], removed: list[Span]) -> list[Span]:
    """What is left of the spans outside of `removed`. No two spans of a list overlap, and both lists are in order."""
    left = []
    for start, end in spans:
        for removed_start, removed_end in removed:
            if removed_end <= start or removed_start >= end:
                continue
            if removed_start > start:
                left.append((start, removed_start))
            start = max(start, removed_end)
        if start < end:
            left.append((start, end))
    return left


def _total(spans: list[Span]) -> float:
    return sum(end - start for start, end in spans)
