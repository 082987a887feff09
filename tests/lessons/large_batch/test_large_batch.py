"""Each run of 07's clinic is ill in the way that its sign says."""

import pytest

from workshop_lib.training import GUESS_LOSS

from lessons.large_batch import judge as check
from lessons.large_batch import recipe_clinic as clinic


def test_the_signs_of_a_low_rate_and_of_weight_decay_fit_one_run_each():
    losses = {name: run["epochs"][-1]["test_loss"] for name, run in check.patients().items()}
    assert losses["E"] == pytest.approx(GUESS_LOSS, rel=0.1)
    assert "close to that of guessing" in clinic.SIGNS["rate too low"]
    assert 3 * losses["healthy"] < losses["A"] < GUESS_LOSS / 2
    assert "most of the way" in clinic.SIGNS["too much weight decay"]


def test_each_patient_is_ill_and_the_healthy_run_is_not():
    reached = {name: run["epochs"][-1]["test_accuracy"] for name, run in check.patients().items()}
    assert reached.pop("healthy") > 0.92
    assert set(reached) == set(clinic.RUNS)
    assert max(reached.values()) < 0.88
