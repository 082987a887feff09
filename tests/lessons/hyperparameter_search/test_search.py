"""The exercises of 14 accept every right way to draw, to halve and to report, and name the mistake in a wrong one."""

import pytest
from judge.answers import solution, variant

from workshop_lib.lessons.hyperparameter_search import judge as check

NOTEBOOK = "14_hyperparameter_search"


@pytest.mark.usefixtures("healthy")
def test_an_error_in_a_scheduler_is_told_with_its_line():
    verdict = check.Asha(variant(NOTEBOOK, "Asha", ("scores.get", "score.get")))
    assert verdict.passed is False
    assert "NameError" in verdict.details and "score.get" in verdict.details


def test_the_solution_chooses_by_the_held_out_images():
    winner = solution(NOTEBOOK, "winner")
    assert winner([{"trial": 3, "held_out": 0.8, "test": 0.9}, {"trial": 5, "held_out": 0.9, "test": 0.7}]) == (5, 0.7)
