"""Schedulers for 14_hyperparameter_search: they decide which settings to train, and for how many images.

A scheduler has two methods. `ask()` returns (trial, setting, images) for a free rank: train this trial until it has
seen this many images in total. `tell(trial, images, accuracy)` then reports its accuracy on held-out images.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from workshop_lib.exercises.solutions import Solution

Setting = Mapping[str, float]
EPOCH = 4096  # images that each trial trains on
LRS = (1e-3, 1.0)
MOMENTA = (0.0, 0.5, 0.9)
BATCHES = (16, 32, 64, 128)
RUNGS = (EPOCH, 3 * EPOCH, 9 * EPOCH)  # images that a trial has seen at the end of each rung
ETA = 3


def grid(**values: Sequence[float]) -> list[dict[str, float]]:
    """Return a setting for every combination of these values."""
    return [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]


class Listed:
    """A scheduler that trains each setting of a list, such as a grid or random draws, for the same number of images."""

    def __init__(self, settings: Iterable[Setting], images: int):
        self.settings = enumerate(settings)
        self.images = images

    def ask(self) -> tuple[int, Setting, int] | None:
        trial, setting = next(self.settings, (0, None))
        return None if setting is None else (trial, setting, self.images)

    def tell(self, trial: int, images: int, accuracy: float) -> None:
        pass


class OneJob:
    """A scheduler that trains one setting until the budget is spent, and evaluates it after every `every` images."""

    def __init__(self, setting: Setting, every: int):
        self.setting = setting
        self.every = every
        self.seen = 0

    def ask(self) -> tuple[int, Setting, int]:
        return 0, self.setting, self.seen + self.every

    def tell(self, trial: int, images: int, accuracy: float) -> None:
        self.seen = images


def best(scores: Mapping[int, float], count: int) -> list[int]:
    """Return the `count` trials with the highest accuracies, the best one first."""
    return sorted(scores, key=scores.__getitem__, reverse=True)[:count]


Asha: Any = Solution("14_hyperparameter_search", "Asha").load()  # what the notebook's second exercise asks for


class Halving:
    """Successive halving that waits: it promotes the best trials of a rung once all trials have finished that rung.

    first: how many trials begin. rungs: how many images a trial has seen at the end of each rung, ascending.
    """

    def __init__(self, draw: Callable[[], Setting], first: int, rungs: Sequence[int] = RUNGS, eta: int = ETA):
        self.rungs = list(rungs)
        self.eta = eta
        self.settings = [draw() for _ in range(first)]
        self.left = list(range(first))  # trials to send to the current rung
        self.rung = 0
        self.given = first
        self.scores: dict[int, float] = {}  # of the current rung

    def ask(self) -> tuple[int, Setting, int] | None:
        if not self.left and len(self.scores) == self.given and self.rung < len(self.rungs) - 1:
            self.left = best(self.scores, self.given // self.eta)
            self.given = len(self.left)
            self.rung += 1
            self.scores = {}
        if not self.left:
            return None  # the rank has to wait for the slowest trial of the rung
        trial = self.left.pop(0)
        return trial, self.settings[trial], self.rungs[self.rung]

    def tell(self, trial: int, images: int, accuracy: float) -> None:
        self.scores[trial] = accuracy
