"""The exercise of 14_hyperparameter_search on halving without waiting.

It runs the learner's scheduler in a simulated search, without training anything.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from workshop_lib.judge import UNKNOWN_HINT, Exercise, Property, is_number, shown
from workshop_lib.lessons.hyperparameter_search import schedulers


@dataclass(frozen=True)
class SimulatedSearch:
    """A search to simulate: its rungs, eta, number of ranks, how many jobs finish, and a seed."""

    rungs: tuple[int, ...]
    eta: int
    ranks: int
    jobs: int
    seed: int


PLANS = [SimulatedSearch((10, 30, 90), 3, 4, 80, 1), SimulatedSearch((8, 16, 32, 64), 2, 3, 90, 2)]


class PlayedJob(NamedTuple):
    """A job that the scheduler gave out. scores: {trial: accuracy} of every rung at that moment."""

    trial: int
    rung: int
    scores: list[dict]


@dataclass
class PlayedSearch:
    """What a scheduler did in a simulated search: its jobs, in order, and every trial's setting.

    wrong: the kind of mistake in the first job that no rank could run, and a detail for the hint; None if all can run.
    """

    plan: SimulatedSearch
    jobs: list[PlayedJob] = field(default_factory=list)
    settings: dict[int, dict] = field(default_factory=dict)
    wrong: tuple[str, Any] | None = None


def accuracy(trial: int, rung: int, seed: int) -> float:
    """Return a made-up accuracy. It rises from rung to rung, but the leader of one rung need not lead the next."""
    quality = np.random.default_rng([seed, trial]).uniform()
    luck = np.random.default_rng([seed, trial, rung]).uniform()
    return 0.4 + 0.15 * rung + 0.1 * quality + 0.04 * luck


def observe_asha(comm, function: Callable) -> list[PlayedSearch]:
    return [play(function, plan) for plan in PLANS]


def play(scheduler_class: Callable, plan: SimulatedSearch) -> PlayedSearch:
    """Simulate a search in which ranks finish their jobs in random order, and return what the scheduler gave out."""
    played = PlayedSearch(plan)
    random = np.random.default_rng(plan.seed)
    drawn: list[dict] = []

    def draw() -> dict:
        drawn.append({"lr": 0.001 * (1 + len(drawn))})
        return dict(drawn[-1])

    scheduler = scheduler_class(draw, list(plan.rungs), plan.eta)
    scores: list[dict] = [{} for _ in plan.rungs]
    running: list[tuple[int, int]] = []
    for _ in range(plan.jobs):
        while len(running) < plan.ranks:
            asked = scheduler.ask()
            played.wrong = _what_is_wrong(asked, played, scores, running, drawn)
            if played.wrong:
                return played
            trial, setting, images = asked
            played.settings[trial] = setting
            rung = plan.rungs.index(images)
            running.append((trial, rung))
            played.jobs.append(PlayedJob(trial, rung, [dict(of_rung) for of_rung in scores]))
        trial, rung = running.pop(int(random.integers(len(running))))
        scores[rung][trial] = accuracy(trial, rung, plan.seed)
        scheduler.tell(trial, plan.rungs[rung], scores[rung][trial])
    return played


def _what_is_wrong(job, played: PlayedSearch, scores: list[dict], running: list, drawn: list) -> tuple[str, Any] | None:
    """Return the kind of mistake in this job and a detail for the hint; None if a rank can run the job."""
    if job is None:
        return "waits", None
    if not (isinstance(job, list | tuple) and len(job) == 3 and is_number(job[0]) and is_number(job[2])):
        return "shape", shown(job)
    trial, setting, images = job
    rungs = played.plan.rungs
    if trial not in played.settings:
        if setting != drawn[-1] or len(drawn) != len(played.settings) + 1:
            return "setting", "a new trial has a setting that was not drawn for it: call `self.draw()` once for each."
        return None if images == rungs[0] else ("first rung", images)
    if any(trial == other for other, _ in running):
        return "twice", trial
    if setting != played.settings[trial]:
        return "setting", f"a trial goes on with another setting than it began with: {SETTING_HINT}"
    reached = max(rung for rung, of_rung in enumerate(scores) if trial in of_rung)
    if reached == len(rungs) - 1:
        return ("twice" if images in rungs else "beyond"), trial
    if images == rungs[reached + 1]:
        return None
    if images in rungs[: reached + 1]:
        return "twice", trial
    return ("difference" if images == rungs[reached + 1] - rungs[reached] else "another rung"), images


IDLE_HINT = "begin a new trial when nobody can go on, instead of waiting for the rung to fill."
SETTING_HINT = "keep each trial's setting, and give it out again when the trial goes on."
BOTTOM_HINT = "a new trial starts at the bottom, with `rungs[0]` images."
TWICE_HINT = "remember whom you've sent on, or the best trial goes again and again."
DIFFERENCE_HINT = (
    "`images` counts from the trial's first image on, not from the end of its last rung: `rungs[rung + 1]`."
)
NOT_BEST_HINTS = {  # hints for each kind of wrongly promoted trial
    "worst": "those are the worst: sort the accuracies from the highest down.",
    "ahead": "a trial that has seen more images is ahead of one that has seen few. Compare within one rung only.",
    "early": "round down: the best of a single trial says nothing yet.",
    "leftover": "those who have gone on still count: take the best 1/eta of all that finished the rung, then leave out "
    "those you've sent on.",
}
MISSED_HINTS = {  # hints for how often trials were promoted
    "never": "nobody ever goes on: that's random search. Look for a trial to promote first.",
    "first rung": "it stops at the second rung: look at every rung but the last.",
    "some": "it waits until a rung is full. Look at those that are there: of 3, the best one goes on.",
}


def asha_properties(observations: list) -> Iterator[Property]:
    plays: list[PlayedSearch] = observations[0]
    kind, what = next((played.wrong for played in plays if played.wrong), ("", None))
    hint = f"`ask` returned {what}: `return trial, setting, images`."
    yield Property("ask returns trial, setting and images", kind != "shape", hint)
    hint = f"`ask` returned None. {IDLE_HINT}"
    yield Property("a rank that asks gets a job, so none ever waits", kind != "waits", hint)
    text = "each trial has a number, and a setting drawn for it that it keeps"
    yield Property(text, kind != "setting", what or "")
    hint = f"a new trial was sent to {what} images. {BOTTOM_HINT}"
    yield Property("a new trial begins with the first rung", kind != "first rung", hint)
    yield Property("no trial does a rung twice", kind != "twice", f"trial {what} was given out again. {TWICE_HINT}")
    hint = f"a trial was sent to {what} images; its rung ends at another number. "
    hint += DIFFERENCE_HINT if kind == "difference" else UNKNOWN_HINT
    fits = kind not in ("difference", "another rung", "beyond")
    yield Property("a trial goes to the end of its next rung", fits, hint)
    for played in plays:
        given = f"with rungs {list(played.plan.rungs)} and eta = {played.plan.eta}"
        kind, sentence = _not_the_best(played)
        text = f"only the best 1/{played.plan.eta} of a rung go on"
        yield Property(text, not kind, f"{given}, {sentence} {NOT_BEST_HINTS.get(kind, UNKNOWN_HINT)}")
        kind, sentence = _missed(played)
        text = f"a trial goes on as soon as it is among the best 1/{played.plan.eta} of its rung"
        yield Property(text, not kind, f"{given}, {sentence} {MISSED_HINTS.get(kind, UNKNOWN_HINT)}")


def _not_the_best(played: PlayedSearch) -> tuple[str, str]:
    """Find the first trial that was promoted without being among the best of its rung.

    Returns its kind (a key of NOT_BEST_HINTS, or "elsewhere") and a sentence; two empty strings if there is none.
    """
    gone: set[tuple[int, int]] = set()
    for job in played.jobs:
        if not job.rung:
            continue
        trial = job.trial
        rung = job.rung - 1
        eta = played.plan.eta
        scores = job.scores[rung]
        if trial not in schedulers.best(scores, len(scores) // eta):
            sentence = f"trial {trial} went on as number {_place(scores, trial)} of {len(scores)} in its rung."
            if len(scores) < eta:
                return ("ahead" if rung else "early"), sentence
            others = {other: score for other, score in scores.items() if (other, rung) not in gone}
            if _place(scores, trial) == len(scores):
                return "worst", sentence
            return ("leftover" if _place(others, trial) == 1 else "elsewhere"), sentence
        gone.add((trial, rung))
    return "", ""


def _place(scores: dict, trial: int) -> int:
    return 1 + schedulers.best(scores, len(scores)).index(trial)


def _missed(played: PlayedSearch) -> tuple[str, str]:
    """Find the first new trial that began although an old trial could have been promoted.

    Returns how often trials were promoted, a key of MISSED_HINTS, and a sentence; two empty strings if there is none.
    """
    gone: set[tuple[int, int]] = set()
    for job in played.jobs:
        if job.rung:
            gone.add((job.trial, job.rung - 1))
            continue
        for rung, scores in enumerate(job.scores[:-1]):
            for trial in schedulers.best(scores, len(scores) // played.plan.eta):
                if (trial, rung) not in gone:
                    return _late(played), f"trial {trial} led a rung of {len(scores)}, but a new trial began."
    return "", ""


def _late(played: PlayedSearch) -> str:
    """Return how often trials were promoted: "never", only from the "first rung", or "some" of the time."""
    highest = max(job.rung for job in played.jobs)
    return {0: "never", 1: "first rung"}.get(highest, "some")


Asha = Exercise("Asha", observe_asha, asha_properties, communicates=False)
