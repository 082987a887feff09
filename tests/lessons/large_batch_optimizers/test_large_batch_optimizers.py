"""The exercises of 07d accept the solutions, and reject wrong answers with the hint that names the mistake."""

from dataclasses import replace

import pytest
from exercises.answers import solution

from workshop_lib.notebook.profile import PROFILES
from workshop_lib.training import optimizers

from lessons.large_batch_optimizers import judge as check

LAPTOP = PROFILES["laptop"]
ADAM = {"lr": 0.02, "warmup_epochs": 1, "decay": "polynomial"}


def test_the_solution_is_what_the_library_trains_with():
    layer_rate = solution(check.NOTEBOOK, "layer_rate")
    group = {"trust": 0.002, "weight_decay": 0.3}
    for _, weights, gradient in check.layers():
        right = float(optimizers.layer_rate(weights, gradient, group))
        assert float(layer_rate(weights, gradient, 0.002, 0.3)) == pytest.approx(right)


def ended(*accuracies):
    return {"epochs": [{"test_accuracy": accuracy} for accuracy in accuracies]}


def test_adam_s_result_decides():
    assert check.adam(ADAM, ended(0.9, 0.945), LAPTOP).passed is True
    assert check.adam(ADAM, ended(0.9, 0.93), LAPTOP).passed is False
    assert check.adam(ADAM | {"lr": ...}, None, LAPTOP).passed is None
    quick = replace(LAPTOP, name="quick")
    assert check.adam(ADAM, ended(0.5, check.ADAM.quick_needed), quick).passed is True
