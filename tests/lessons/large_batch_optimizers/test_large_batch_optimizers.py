"""The exercises of 07d accept the solutions, and reject wrong answers with the hint that names the mistake."""

from dataclasses import replace

import pytest
from judge.answers import solution

from workshop_lib.lessons.large_batch_optimizers import judge as check
from workshop_lib.notebook.profile import PROFILES
from workshop_lib.training import optimizers

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


class Team:
    def train(self, options, timeout):
        self.options = options
        return ended(0.95)


def test_adam_is_trained_as_128_workers():
    team = Team()
    assert check.train_adam(team, ADAM, LAPTOP) == ended(0.95)
    told = team.options
    assert (told.optimizer, told.emulate_workers, told.epochs, told.lr) == ("adam", 128, 4, 0.02)
    assert check.train_adam(None, ADAM | {"lr": ...}, LAPTOP) is None


def test_adam_s_result_decides():
    assert check.adam(ADAM, ended(0.9, 0.945), LAPTOP).passed is True
    assert check.adam(ADAM, ended(0.9, 0.93), LAPTOP).passed is False
    assert check.adam(ADAM | {"lr": ...}, None, LAPTOP).passed is None
    quick = replace(LAPTOP, name="quick")
    assert check.adam(ADAM, ended(0.5, check.ADAM.quick_needed), quick).passed is True


@pytest.mark.parametrize(
    ("recipe", "accuracies", "hint"),
    [
        (ADAM | {"lr": 0.128}, (0.1, 0.1), "its steps are too long"),
        (ADAM | {"lr": 0.002}, (0.5, 0.8), "its steps are too short"),
        (ADAM | {"optimizer": "lars"}, (), "'optimizer' isn't among the options of this exercise"),
    ],
)
def test_a_recipe_for_adam_that_fails_gets_its_hint(recipe, accuracies, hint):
    verdict = check.adam(recipe, ended(*accuracies), LAPTOP)
    assert verdict.passed is False and hint in verdict.hint
