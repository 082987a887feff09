"""The exercises of 07 accept the solutions, and reject wrong answers with the hint that names the mistake."""

import pytest
from judge.answers import solution

from workshop_lib.lessons.large_batch import judge as check
from workshop_lib.lessons.large_batch import recipe_clinic as clinic
from workshop_lib.training import GUESS_LOSS, schedules

pytestmark = pytest.mark.usefixtures("healthy")


def test_the_solution_is_what_the_library_trains_with():
    learning_rate = solution(check.NOTEBOOK, "learning_rate")
    for base_lr, workers, warmup in (check.RECIPE, *check.OTHER_RECIPES):
        for step in range(check.STEPS):
            right = schedules.lr_at(step, check.STEPS, base_lr * workers, warmup)
            assert learning_rate(step, base_lr, workers, warmup) == pytest.approx(right)


def test_a_diagnosis_is_judged_by_what_the_curves_would_show():
    assert check.diagnoses(clinic.RUNS).passed is True
    assert check.diagnoses(clinic.RUNS | {"A": ...}).passed is None
    verdict = check.diagnoses(clinic.RUNS | {"A": "rate too low"})
    assert verdict.passed is False and clinic.SIGNS["rate too low"] in verdict.hint


CURES = {
    "A": {"weight_decay": 0.0},
    "B": {"emulate_workers": 8},
    "C": {"lr": 0.03},
    "D": {"train_samples": 5000},
    "E": {"lr": 0.03},
}


def ended(accuracy):
    return {"epochs": [{"test_accuracy": accuracy}]}


def judged(changes, accuracies):
    return check.changes(changes, {run: ended(accuracy) for run, accuracy in accuracies.items()})


WELL = dict.fromkeys(CURES, 0.95)


def test_each_change_that_cures_passes_and_dots_are_not_solved_yet():
    assert judged(CURES, WELL).passed is True
    assert judged(CURES | {"C": {"optimizer": "lars"}}, WELL).passed is True, "whatever helps"
    assert judged(CURES | {"E": ...}, {}).passed is None
    assert check.treat(None, CURES | {"E": ...}) == {}


@pytest.mark.parametrize(
    ("run", "option", "value", "hint"),
    [
        ("C", "lr", 0.5, "the right direction, but not far enough"),
        ("D", "epochs", 20, "by heart already"),
        ("A", "lr", 0.2, "the same illness, too much weight decay"),
    ],
)
def test_a_change_that_does_not_help_is_told_why(run, option, value, hint):
    verdict = judged(CURES | {run: {option: value}}, WELL | {run: 0.5})
    assert verdict.passed is False
    assert hint in verdict.hint and "50.0%" in verdict.hint


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"lr": 0.1, "epochs": 20}, "one thing at a time"),
        ({"lr": 1.0}, "the value it has already"),
        ({"speed": 2}, "can't be run"),
        ({"epochs": 1000}, "would take long"),
        (0.1, "write an option"),
    ],
)
def test_a_change_that_cannot_be_tried_is_not_trained(change, hint):
    verdict = judged(CURES | {"C": change}, {run: 0.95 for run in WELL if run != "C"})
    assert verdict.passed is False
    assert hint in verdict.hint


def test_the_signs_of_a_low_rate_and_of_weight_decay_fit_one_run_each():
    losses = {name: run["epochs"][-1]["test_loss"] for name, run in check.patients().items()}
    assert losses["E"] == pytest.approx(GUESS_LOSS, rel=0.1)
    assert "close to that of guessing" in clinic.SIGNS["rate too low"]
    assert 3 * losses["healthy"] < losses["A"] < GUESS_LOSS / 2
    assert "most of the way" in clinic.SIGNS["too much weight decay"]


def test_each_patient_is_ill_and_the_healthy_run_is_not():
    reached = {name: run["epochs"][-1]["test_accuracy"] for name, run in check.patients().items()}
    assert reached.pop("healthy") > clinic.CURED + 0.02
    assert set(reached) == set(clinic.RUNS)
    assert max(reached.values()) < clinic.CURED - 0.02
