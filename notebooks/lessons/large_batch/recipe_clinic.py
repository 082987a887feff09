"""The clinic of 07_large_batch: runs whose recipe has one fault each, which the learner diagnoses from the curves."""

from workshop_lib.exercises.judge import Verdict

from lessons.ddp import clinic
from lessons.large_batch import recipes

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


def patients() -> dict[str, dict]:
    """Return {name: record} of the runs, the healthy one first."""
    runs = recipes.recorded("large_batch_recipes")
    return {name: next(iter(recipes.of(runs, name))) for name in recipes.PATIENTS}


def diagnoses(answers: dict[str, str]) -> Verdict:
    """Return the verdict on the diagnoses. answers: {run: illness}."""
    return clinic.diagnoses(answers, RUNS, SIGNS)
