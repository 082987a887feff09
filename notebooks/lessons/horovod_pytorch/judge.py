"""Judges the exercise of 03_horovod_pytorch, `lateness`, on timelines that are made up."""

import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played

from lessons.horovod_pytorch.figures import Ready

NOTEBOOK = "03_horovod_pytorch"
written = functools.partial(own_or_solution, notebook=NOTEBOOK)
# For each step and tensor, when rank 0 learned that each rank has it, in milliseconds.
TWO_TENSORS = [{"b": [0.0, 20.0], "a": [21.0, 21.5]}]
THREE_STEPS = [
    {"b": [0.0, 0.5, 2.0], "a": [1.0, 4.5, 2.5]},
    {"b": [230.0, 200.0, 201.0], "a": [231.0, 200.5, 202.0]},
    {"b": [400.0, 400.0, 401.5], "a": [402.0, 401.0, 402.0]},
]


def events_of(steps: Sequence[Mapping[str, Sequence[float]]]) -> list[Ready]:
    """The events of these steps, in the order of their time. Messages of different tensors are interleaved."""
    events = [
        Ready(tensor, step, rank, at_ms)
        for step, of_tensors in enumerate(steps)
        for tensor, times_ms in of_tensors.items()
        for rank, at_ms in enumerate(times_ms)
    ]
    return sorted(events, key=lambda event: event.at_ms)


def play_lateness(lateness: Callable, _comm) -> Iterator[tuple]:
    """Show timelines of one tensor, of more tensors and steps, with ties, and in any order."""
    yield "with one tensor, a rank is late since the first rank's message", lateness(events_of([{"b": [3.0, 20.0]}]))
    text = "with more tensors, each one counts from the first message about it, and the latest decides"
    yield text, lateness(events_of(TWO_TENSORS))
    yield "a rank that is late in one step only is late in that step", lateness(events_of(THREE_STEPS[:2]))
    yield "ranks whose messages arrive together are equally late", lateness(events_of(THREE_STEPS))
    shuffled = events_of(THREE_STEPS)
    random.Random(1).shuffle(shuffled)
    text = "the events may be in any order"
    yield text, lateness(shuffled), "", "Take the earliest message with `min`, and don't rely on the list's order."


KEY = "key = event.tensor, event.step"
WAITED = "event.at_ms - first_ms[event.tensor, event.step]"
LATEST = "max(of_rank[event.step], waited_ms)"
lateness = played(
    "lateness",
    NOTEBOOK,
    play_lateness,
    [
        Edit(
            "count from the first message about this *tensor*. A rank isn't late because a tensor's turn comes later.",
            (KEY, "key = event.step"),
            (WAITED, "event.at_ms - first_ms[event.step]"),
        ),
        Edit("a rank's latest tensor decides: take the largest of its tensors, not the last.", (LATEST, "waited_ms")),
        Edit(
            "the tensors of a step wait at the same time: take the largest of a rank's tensors, and don't add them up.",
            (LATEST, "of_rank[event.step] + waited_ms"),
        ),
        Edit(
            "each step has its own first message: look for it among the messages with the same tensor *and* step.",
            (KEY, "key = event.tensor"),
            (WAITED, "event.at_ms - first_ms[event.tensor]"),
        ),
        Edit(
            "take the earliest message with `min`, because the events may be in any order.",
            ("min(event.at_ms, first_ms.get(key, event.at_ms))", "first_ms.get(key, event.at_ms)"),
        ),
    ],
    returns="a list of milliseconds for each rank",
    communicates=False,
    unknown="for each tensor of a step, subtract the earliest `at_ms` from each rank's, and keep each rank's largest.",
)
