"""The learner's recipe for 128 workers is judged by its run, and a recipe that cannot be tried says why."""

from dataclasses import replace
from statistics import fmean

import pytest

from workshop_lib.notebook.profile import PROFILES

from lessons.large_batch import own_recipe, recipes
from lessons.large_batch.recipes import ALONE, TUNED

LAPTOP = PROFILES["laptop"]
SOLUTION = {"lr": 0.19, "momentum": 0.9, "nesterov": False, "warmup_epochs": 0, "decay": "none"}


def ended(*accuracies):
    return {"epochs": [{"test_accuracy": accuracy} for accuracy in accuracies]}


def judged(recipe, *accuracies):
    return own_recipe.judge(recipe, ended(*accuracies), LAPTOP)


class Team:
    def train(self, options, timeout):
        self.options = options
        return ended(0.9)


def test_it_is_trained_as_128_workers_on_all_images():
    team = Team()
    assert own_recipe.train(team, SOLUTION, LAPTOP) == ended(0.9)
    told = team.options
    assert (told.emulate_workers, told.lr_scaling, told.epochs, told.train_samples) == (128, "none", 4, None)
    assert (told.lr, told.momentum, told.warmup_epochs, told.decay) == (0.19, 0.9, 0, "none")


def test_the_result_decides():
    assert judged(SOLUTION, 0.5, 0.8, 0.95, 0.94).passed is True
    assert judged(SOLUTION, 0.5, 0.7, 0.94, 0.92).passed is False
    quick = own_recipe.judge(SOLUTION, ended(0.2, 0.75), replace(LAPTOP, name="quick"))
    assert quick.passed is True, "two epochs are half of the steps"


@pytest.mark.parametrize(
    ("recipe", "accuracies", "hint"),
    [
        (SOLUTION | {"lr": 1.28}, (0.1, 0.1, 0.1, 0.1), "its steps are too long"),
        (SOLUTION | {"momentum": 0.5}, (0.2, 0.4, 0.5, 0.6), "momentum makes up for length"),
        (SOLUTION | {"lr": 0.02}, (0.2, 0.4, 0.5, 0.6), "its steps are too short"),
        (SOLUTION, (), "stopped before its first test"),
        (SOLUTION | {"epochs": 9}, (), "'epochs' isn't among the options of this exercise"),
        (SOLUTION | {"decay": "slowly"}, (), "that can't be run: "),
        ("fast", (), "a recipe is a dictionary of options"),
    ],
)
def test_a_recipe_that_fails_gets_its_hint(recipe, accuracies, hint):
    verdict = judged(recipe, *accuracies)
    assert verdict.passed is False and hint in verdict.hint


@pytest.mark.parametrize("recipe", [SOLUTION | {"lr": ...}, {}])
def test_nothing_is_trained_before_every_dot_is_replaced(recipe):
    assert own_recipe.train(None, recipe, LAPTOP) is None
    assert own_recipe.judge(recipe, None, LAPTOP).passed is None


def test_the_solution_passes_on_three_seeds_and_a_rate_alone_does_not():
    runs = recipes.recorded("large_batch_recipes")
    alone, tuned = ([run["epochs"][-1]["test_accuracy"] for run in recipes.of(runs, name)] for name in (ALONE, TUNED))
    assert len(alone) == len(tuned) == 3
    assert min(tuned) > own_recipe.NEEDED > fmean(alone)
    assert alone[0] < own_recipe.NEEDED - 0.02, "the seed with which the learner trains"


def test_the_recipe_of_the_figure_learns_on_three_seeds():
    runs = recipes.recorded("large_batch_solution")
    assert [run["what"]["seed"] for run in runs] == [1, 2, 3]
    for run in runs:
        what = run["what"]
        assert (what["emulate_workers"], what["lr"], what["momentum"], what["decay"]) == (128, 0.2, 0.9, "polynomial")
        assert run["epochs"][-1]["test_accuracy"] > 0.97
