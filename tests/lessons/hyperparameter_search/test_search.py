"""The exercises of 14 accept every right way to draw, to halve and to report, and name the mistake in a wrong one."""

import numpy as np
import pytest
from judge.answers import solution, variant

from workshop_lib.lessons.hyperparameter_search import judge as check
from workshop_lib.lessons.hyperparameter_search import schedulers

NOTEBOOK = "14_hyperparameter_search"


@pytest.mark.usefixtures("healthy")
def test_an_error_in_a_scheduler_is_told_with_its_line():
    verdict = check.Asha(variant(NOTEBOOK, "Asha", ("scores.get", "score.get")))
    assert verdict.passed is False
    assert "NameError" in verdict.details and "score.get" in verdict.details


def test_the_solutions_draw_like_the_library_and_choose_by_the_held_out_images():
    draw, winner = (solution(NOTEBOOK, name) for name in ("draw", "winner"))
    for seed in range(5):
        setting = schedulers.draw(np.random.default_rng(seed))
        assert draw(np.random.default_rng(seed)) == pytest.approx(setting)
    assert winner([{"trial": 3, "held_out": 0.8, "test": 0.9}, {"trial": 5, "held_out": 0.9, "test": 0.7}]) == (5, 0.7)
