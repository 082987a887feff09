"""The exercises of 07d accept the solutions, and reject wrong answers with the hint that names the mistake."""

from dataclasses import replace

import pytest
from exercises.answers import solution

from workshop_lib.notebook.profile import PROFILES
from workshop_lib.training import optimizers

from lessons.large_batch_optimizers import judge as check

LAPTOP = PROFILES["laptop"]


def test_the_solution_is_what_the_library_trains_with():
    layer_rate = solution(check.NOTEBOOK, "layer_rate")
    group = {"trust": 0.002, "weight_decay": 0.3}
    for _, weights, gradient in check.layers():
        right = float(optimizers.layer_rate(weights, gradient, group))
        assert float(layer_rate(weights, gradient, 0.002, 0.3)) == pytest.approx(right)


@pytest.mark.parametrize(
    ("found", "passed", "hint"),
    [
        ({0.01: 90.0, 0.02: 93.0, 0.04: 94.5, 0.08: 94.0}, True, ""),
        ({0.08: 94.0, 0.03: 94.5, 0.015: 92.0, 0.06: 94.4}, True, ""),
        ({0.02: 93.0, 0.04: 94.5, 0.08: 93.0}, False, "you tried 3 different rates"),
        ({0.001: 40.0, 0.002: 60.0, 0.004: 80.0, 0.008: 90.0}, False, "0.008 is the best of your rates, with 90.0 %"),
        ({0.04: 94.5, 0.08: 94.0, 0.16: 90.0, 0.32: 10.0}, False, "the lower ones are still untried"),
        ({0.001: 40.0, 0.01: 90.0, 0.1: 80.0, 1.0: 10.0}, False, "closer together"),
        ({...: 0.0}, None, ""),
    ],
)
def test_the_search_for_adam_s_rate_is_judged_by_what_it_found(found, passed, hint):
    verdict = check.adam_rates(list(found), found, LAPTOP)
    assert verdict.passed is passed and hint in verdict.hint


def test_runs_of_the_quick_profile_are_too_short_to_be_judged():
    assert check.adam_rates([1, 2, 3, 4], {1: 10.0}, replace(LAPTOP, name="quick")).passed is True
