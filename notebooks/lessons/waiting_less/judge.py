"""The exercise of 07e_waiting_less: gradients that are applied one step late."""

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import numpy as np

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played

NOTEBOOK = "07e_waiting_less"
written = partial(own_or_solution, notebook=NOTEBOOK)
N = 2
LR = 0.5
STEPS = 4


class Averages:
    """Averages of this rank's gradients and those of one more rank, which is simulated."""

    def __init__(self):
        self.started = 0
        self.traveling: set[int] = set()

    def start(self, array: np.ndarray) -> SimpleNamespace:
        """Start an average. `wait()` of what this returns ends its travel and returns it."""
        number = self.started
        self.started += 1
        self.traveling.add(number)
        average = (np.array(array) + np.random.default_rng(number).normal(size=N)) / 2

        def wait() -> np.ndarray:
            self.traveling.discard(number)
            return average

        return SimpleNamespace(wait=wait)


def play_one_step_late(one_step_late: Callable, comm) -> Iterator[tuple]:
    averages = Averages()
    traveling = []
    read = []

    def gradient(weights: np.ndarray, step: int) -> np.ndarray:
        traveling.append(len(averages.traveling))
        read.append(np.array(weights))
        return (step + 1) * np.array(weights) - 1

    final = one_step_late(averages.start, gradient, np.arange(1.0, N + 1), LR, STEPS)
    counts = f"while it computed its gradients, {traveling} averages were traveling, and it started {averages.started}."
    yield "each gradient is computed at weights that lack only the newest average", read, "in steps 0 to 3"
    text = "while a gradient is computed, the average of the step before is traveling"
    yield text, traveling, counts
    yield text, averages.started, counts
    yield "the last average is applied, too", final
    yield "in the end, nothing is traveling", len(averages.traveling)


INSIDE = "            weights = weights - lr * traveling.wait()\n"
EARLY = "it waits for each average before it computes the next gradient, so nothing overlaps: compute first, then wait."
one_step_late = played(
    "one_step_late",
    NOTEBOOK,
    play_one_step_late,
    [
        Edit(
            EARLY,
            (f"        if traveling is not None:\n{INSIDE}        traveling =", "        weights = weights - lr *"),
            (
                "start_average(new)\n    return weights - lr * traveling.wait()",
                "start_average(new).wait()\n    return weights",
            ),
        ),
        Edit(
            "it applies this rank's own gradient: apply the average, which `wait()` returns.",
            (INSIDE, "            weights = weights - lr * new\n"),
        ),
        Edit(
            "the last average is still traveling when it returns: wait for it, and apply it.",
            ("return weights - lr * traveling.wait()", "return weights"),
        ),
    ],
    returns="the weights",
    in_place=True,
    communicates=False,
)
