"""The clinic of 07_large_batch: runs whose recipe has one fault each.

The learner diagnoses each fault from the curves, changes one option of each run, and trains again.
"""

from typing import Any

import pandas as pd

from workshop_lib.errors import InputError
from workshop_lib.judge import Verdict
from workshop_lib.lessons.ddp import clinic
from workshop_lib.lessons.large_batch import recipes
from workshop_lib.lessons.large_batch.recipes import PATIENTS
from workshop_lib.training.options import TrainOptions

CURED = 0.9  # the test accuracy from which a run counts as cured
MOST_IMAGES = 120_000  # over all epochs of a run: about ten seconds on two cores
TIMEOUT_S = 120.0
SHOWN = ("lr", "epochs", "train_samples", "emulate_workers", "weight_decay")
# What each fault would look like: the hint for a learner who diagnoses it in a run that looks different.
SIGNS = {
    "rate too high": "the loss would jump to that of guessing, 2.30, in the first steps and stay there",
    "rate too low": "after as many steps as the healthy run, the loss would still be close to that of guessing, 2.30",
    "too few steps": "the curve would end early: it would have far fewer steps than the healthy one",
    "too much weight decay": "in as many steps as the healthy run, the loss would fall most of the way, but not all",
    "too little data": "the training loss would fall towards zero, but the test loss would stay far above it",
}
RUNS = {
    "A": "too much weight decay",
    "B": "too few steps",
    "C": "rate too high",
    "D": "too little data",
    "E": "rate too low",
}


# Changes that cure nothing, though many learners try them: (illness, option, whether it goes up), and the hint.
WRONG_TURNS = {
    ("rate too high", "lr", False): "the right direction, but not far enough. What does the healthy run have?",
    ("rate too low", "lr", True): "the right direction, but not this far. What does the healthy run have?",
    ("too few steps", "lr", True): "longer steps can't make up for this many missing ones. Where did they go?",
    ("too little data", "epochs", True): "it knows these images by heart already. Give it new images.",
    ("too much weight decay", "epochs", True): "the decay pulls in every step: turn it down, don't learn against it.",
}


def patients() -> dict[str, dict]:
    """Return {name: record} of the runs, the healthy one first."""
    runs = recipes.recorded("large_batch_recipes")
    return {name: next(iter(recipes.of(runs, name))) for name in PATIENTS}


def options() -> pd.DataFrame:
    """Return a table of the options that each run was trained with."""
    every = {name: TrainOptions(**told).as_dict() for name, told in PATIENTS.items()}
    return pd.DataFrame({name: {key: str(told[key]) for key in SHOWN} for name, told in every.items()}).T


def diagnoses(answers: dict[str, str]) -> Verdict:
    """Return the verdict on the diagnoses. answers: {run: illness}."""
    return clinic.diagnoses(answers, RUNS, SIGNS)


def treat(team, changes: dict[str, dict]) -> dict[str, dict]:
    """Train each run again on these ranks with the learner's change to it; return {run: new record}.

    Leaves out runs whose change cannot be tried, and trains nothing until every run has a change.
    """
    treated = {}
    for run in RUNS:
        if _open(changes) or _refused(changes[run], PATIENTS[run]):
            continue
        print(f"run {run}: {changes[run]} …", end=" ", flush=True)
        treated[run] = team.train(TrainOptions(**PATIENTS[run] | changes[run]), timeout=TIMEOUT_S, show=False)
        print(f"test accuracy {treated[run]['epochs'][-1]['test_accuracy']:.1%}", flush=True)
    return treated


def changes(changes: dict[str, dict], treated: dict[str, dict]) -> Verdict:
    """Return the verdict on one change per run, {run: {option: value}}, given the records of the treated runs."""
    return _judged(changes, treated).recorded()


def _judged(changes: dict[str, dict], treated: dict[str, dict]) -> Verdict:
    verdict = Verdict("changes", to_do="Replace the dots")
    if _open(changes):
        return verdict
    verdict.passed = False
    for run, illness in RUNS.items():
        before = PATIENTS[run]
        change = changes[run]
        verdict.hint = _refused(change, before)
        reached = 0.0 if verdict.hint else treated[run]["epochs"][-1]["test_accuracy"]
        if reached < CURED:
            verdict.failed = f"run {run}, with {change}: {CURED:.0%} of the test images are right"
            verdict.hint = verdict.hint or f"{reached:.1%} are right: {_turned(illness, before, change)}"
            return verdict
        verdict.held.append(f"run {run}, with {change}: {reached:.1%} of the test images are right")
    verdict.passed = True
    return verdict


def _open(changes: dict[str, Any]) -> bool:
    return any(changes.get(run, ...) in (..., {}) for run in RUNS)


def _refused(change: Any, before: dict) -> str:
    """Return why this change cannot be tried; an empty string if it can."""
    if not isinstance(change, dict):
        return "write an option and its new value, like {'lr': 0.2}."
    if len(change) > 1:
        return "change one thing at a time. If two change and it gets better, which of them was it?"
    options = before | change
    try:
        new = TrainOptions(**options)
    except (InputError, TypeError) as error:
        return f"that can't be run: {error}"
    if new == TrainOptions(**before):
        return "that's the value it has already."
    if new.epochs * (new.train_samples or recipes.IMAGES) > MOST_IMAGES:
        return f"that would take long: stay below {MOST_IMAGES:,} images, summed over all epochs."
    return ""


def _turned(illness: str, before: dict, change: dict) -> str:
    """Return the hint on a change that did not help."""
    [(option, value)] = change.items()
    old = TrainOptions(**before).as_dict()[option]
    general = f"it still has the same illness, {illness}. Compare its options with those of the healthy run."
    return WRONG_TURNS.get((illness, option, value > old), general)
