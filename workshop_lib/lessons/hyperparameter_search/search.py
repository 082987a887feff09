"""Which settings to train, and for how long: schedulers for a search, and what a search has found.

A scheduler has two methods. `ask()` gives (trial, setting, images) for a free rank: train this trial until it has
seen that many images altogether. `tell(trial, images, accuracy)` takes in how well it then did on held-out images.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Setting = Mapping[str, float]
Job = tuple[int, Setting, int]
KIND = "search"
LRS, MOMENTA, BATCHES = (1e-3, 1.0), (0.0, 0.5, 0.9), (16, 32, 64, 128)
RUNGS, ETA = (4096, 12_288, 36_864), 3  # images: 1, 3 and 9 epochs of what trials train on


class Result(Protocol):
    """What a search has done with one job (ranks.trials.Done)."""

    result: Any


def draw(random: np.random.Generator) -> dict[str, float]:
    """A setting at random: the learning rate log-uniform, since what matters is its order of magnitude."""
    low, high = (math.log(lr) for lr in LRS)
    lr = math.exp(random.uniform(low, high))
    return {"lr": lr, "momentum": float(random.choice(MOMENTA)), "batch": int(random.choice(BATCHES))}


def grid(**values: Sequence[float]) -> list[dict[str, float]]:
    """Every combination of these values."""
    return [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]


class Listed:
    """Each setting of a list, for all of the images: a grid, or as many as were drawn at random."""

    def __init__(self, settings: Iterable[Setting], images: int):
        self.settings, self.images = enumerate(settings), images

    def ask(self) -> Job | None:
        trial, setting = next(self.settings, (0, None))
        return None if setting is None else (trial, setting, self.images)

    def tell(self, trial: int, images: int, accuracy: float) -> None:
        pass


class OneJob:
    """One setting for as long as there is budget, looked at after every `every` images."""

    def __init__(self, setting: Setting, every: int):
        self.setting, self.every, self.seen = setting, every, 0

    def ask(self) -> Job:
        return 0, self.setting, self.seen + self.every

    def tell(self, trial: int, images: int, accuracy: float) -> None:
        self.seen = images


def best(scores: Mapping[int, float], count: int) -> list[int]:
    """The trials with the highest accuracies, the best one first."""
    return sorted(scores, key=scores.__getitem__, reverse=True)[:count]


class Asha:
    """Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934, algorithm 2).

    rungs: images that a trial has seen at the end of each rung, ascending. A free rank takes a trial that is among the
    best 1 / eta of those that have finished its rung, and sends it to the next; if there is none, a new one.
    """

    def __init__(self, draw: Callable[[], Setting], rungs: Sequence[int] = RUNGS, eta: int = ETA):
        self.draw, self.rungs, self.eta = draw, list(rungs), eta
        self.settings: list[Setting] = []
        self.scores: list[dict[int, float]] = [{} for _ in rungs]  # of each rung, the accuracy by trial
        self.promoted: set[tuple[int, int]] = set()  # (trial, rung that it has left)

    def ask(self) -> Any:
        for rung in reversed(range(len(self.rungs) - 1)):
            scores = self.scores[rung]
            for trial in best(scores, len(scores) // self.eta):
                if (trial, rung) not in self.promoted:
                    self.promoted.add((trial, rung))
                    return trial, self.settings[trial], self.rungs[rung + 1]
        return self.begin()

    def begin(self) -> Job:
        """A new trial, on its way to the first rung."""
        self.settings.append(self.draw())
        return len(self.settings) - 1, self.settings[-1], self.rungs[0]

    def tell(self, trial: int, images: int, accuracy: float) -> None:
        self.scores[self.rungs.index(images)][trial] = accuracy


class Halving(Asha):
    """Successive halving that waits: a rung is sorted out once all of its trials are there. `first` trials begin."""

    def __init__(self, draw: Callable[[], Setting], first: int, rungs: Sequence[int] = RUNGS, eta: int = ETA):
        super().__init__(draw, rungs, eta)
        self.rung, self.given = 0, 0
        self.left: list[int | None] = [None] * first  # to be sent to the current rung; None: a new one

    def ask(self) -> Job | None:
        if not self.left and len(self.scores[self.rung]) == self.given and self.rung < len(self.rungs) - 1:
            self.left = [*best(self.scores[self.rung], self.given // self.eta)]
            self.rung, self.given = self.rung + 1, 0
        if not self.left:
            return None  # a rank waits here for the slowest trial of the rung
        self.given += 1
        trial = self.left.pop(0)
        return self.begin() if trial is None else (trial, self.settings[trial], self.rungs[self.rung])


def winner(done: Iterable[Result]) -> Any:
    """Of the trials that have seen the most images, the one that does best on the held-out images."""
    results = [each.result for each in done]
    longest = max(result["images"] for result in results)
    return max((r for r in results if r["images"] == longest), key=lambda result: result["held_out"])


def report(rows: Iterable[Mapping[str, Any]]) -> tuple[int, float]:
    """The trial that does best on the held-out images, and its accuracy on the test images, which chose nothing."""
    chosen = max(rows, key=lambda row: row["held_out"])
    return chosen["trial"], chosen["test"]


def wrong_winner(better: Sequence[float], worse: Sequence[float], seeds: int, draws: int = 4000) -> float:
    """How often the mean of `seeds` seeds, drawn from those measured, puts the worse setting first; ties count half."""
    random = np.random.default_rng(1)
    means = [random.choice(np.asarray(each), size=(draws, seeds)).mean(axis=1) for each in (better, worse)]
    return float(np.mean(means[1] > means[0]) + np.mean(means[1] == means[0]) / 2)


def seeds_needed(first: Sequence[float], second: Sequence[float], sigmas: float = 2.0) -> int:
    """Seeds per setting until the difference of the means is `sigmas` of its standard errors.

    The error of a mean of n is s / sqrt(n), of a difference sqrt(2) times that: n = 2 (sigmas s / difference)².
    """
    variance = (statistics.variance(first) + statistics.variance(second)) / 2
    difference = statistics.fmean(first) - statistics.fmean(second)
    return max(1, math.ceil(2 * sigmas**2 * variance / difference**2))
