"""The exercises of 08 accept right answers, and reject wrong ones with the hint that names the mistake."""

import pytest
from judge.answers import solution

from workshop_lib.lessons.scaling_curves import judge as scaling

pytestmark = pytest.mark.usefixtures("healthy")


def test_the_solutions_of_08_are_right():
    table = solution(scaling.NOTEBOOK, "scaling_table")
    assert table(scaling.SECONDS) == {1: (1, 1), 2: (1.6, 0.8), 4: (2.5, 0.625)}
    assert table(scaling.LONGER)[4] == (3.2, 0.8)
    fraction = solution(scaling.NOTEBOOK, "serial_fraction")
    found = [fraction(speedup, n) for speedup, n, _ in scaling.MEASURED]
    assert found == pytest.approx([0.1, 0, 1, -0.05], abs=1e-12)
