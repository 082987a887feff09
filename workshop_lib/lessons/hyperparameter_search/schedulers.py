"""Schedulers for 14_hyperparameter_search: they decide which settings to train, and for how many images.

A scheduler has two methods. `ask()` returns (trial, setting, images) for a free rank: train this trial until it has
seen this many images in total. `tell(trial, images, accuracy)` then reports its accuracy on held-out images.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Setting = Mapping[str, float]
EPOCH = 4096  # images that each trial trains on
LRS = (1e-3, 1.0)
MOMENTA = (0.0, 0.5, 0.9)
BATCHES = (16, 32, 64, 128)
RUNGS = (EPOCH, 3 * EPOCH, 9 * EPOCH)  # images that a trial has seen at the end of each rung
ETA = 3


def draw(random: np.random.Generator) -> dict[str, float]:
    """Draw a random setting. Its learning rate is log-uniform, because the order of magnitude is what matters."""
    low, high = (math.log(lr) for lr in LRS)
    lr = math.exp(random.uniform(low, high))
    return {"lr": lr, "momentum": float(random.choice(MOMENTA)), "batch": int(random.choice(BATCHES))}


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


class Asha:
    """A scheduler by asynchronous successive halving (Li et al. 2020, arXiv:1810.05934, algorithm 2).

    rungs: how many images a trial has seen at the end of each rung, ascending. A free rank promotes a trial that is
    among the best 1 / eta of those that have finished its rung. If there is none, the rank begins a new trial.
    """

    def __init__(self, draw: Callable[[], Setting], rungs: Sequence[int] = RUNGS, eta: int = ETA):
        self.draw = draw
        self.rungs = list(rungs)
        self.eta = eta
        self.settings: list[Setting] = []
        self.scores: list[dict[int, float]] = [{} for _ in rungs]  # for each rung, accuracy by trial
        self.promoted: set[tuple[int, int]] = set()  # (trial, the rung that it left)

    def ask(self) -> Any:
        for rung in reversed(range(len(self.rungs) - 1)):
            scores = self.scores[rung]
            for trial in best(scores, len(scores) // self.eta):
                if (trial, rung) not in self.promoted:
                    self.promoted.add((trial, rung))
                    return trial, self.settings[trial], self.rungs[rung + 1]
        return self.begin()

    def begin(self) -> tuple[int, Setting, int]:
        """Draw a new trial and return its first job, which takes it to the end of the first rung."""
        self.settings.append(self.draw())
        return len(self.settings) - 1, self.settings[-1], self.rungs[0]

    def tell(self, trial: int, images: int, accuracy: float) -> None:
        self.scores[self.rungs.index(images)][trial] = accuracy


class Halving(Asha):
    """Successive halving that waits: it promotes the best trials of a rung once all trials have finished that rung.

    first: how many trials begin.
    """

    def __init__(self, draw: Callable[[], Setting], first: int, rungs: Sequence[int] = RUNGS, eta: int = ETA):
        super().__init__(draw, rungs, eta)
        self.rung = 0
        self.given = 0
        self.left: list[int | None] = [None] * first  # trials to send to the current rung; None is a new trial

    def ask(self) -> tuple[int, Setting, int] | None:
        if not self.left and len(self.scores[self.rung]) == self.given and self.rung < len(self.rungs) - 1:
            self.left = [*best(self.scores[self.rung], self.given // self.eta)]
            self.rung = self.rung + 1
            self.given = 0
        if not self.left:
            return None  # the rank has to wait for the slowest trial of the rung
        self.given += 1
        trial = self.left.pop(0)
        return self.begin() if trial is None else (trial, self.settings[trial], self.rungs[self.rung])
