"""The exercises of 08 accept right answers, and reject wrong ones with the hint that names the mistake."""

import pytest
from judge.answers import solution
from judge.verdicts import Verdicts

from workshop_lib.lessons.scaling_curves import judge as scaling

pytestmark = pytest.mark.usefixtures("healthy")


class TestScalingCurves(Verdicts):
    check, notebook, names = scaling, scaling.NOTEBOOK, ["scaling_table", "serial_fraction"]
    right = {
        "scaling_table": {
            "with numpy": """
                def scaling_table(seconds):
                    import numpy as np
                    time = {n: np.median(np.array(runs)[:, 1:].sum(axis=1)) for n, runs in seconds.items()}
                    return {n: [time[1] / time[n], time[1] / (n * time[n])] for n in sorted(time)}
                """,
            "one median of all epochs but the first": """
                def scaling_table(seconds):
                    time = {n: median(s for run in runs for s in run[1:]) for n, runs in seconds.items()}
                    return {n: (time[1] / time[n], time[1] / time[n] / n) for n in time}
                """,
        },
        "serial_fraction": {
            "another form": """
                def serial_fraction(speedup, n):
                    return (n / speedup - 1) / (n - 1)
                """
        },
    }
    # Every function that needs no ranks is stopped like this one.
    never_ends = {"serial_fraction": {"a loop": ([("return ", "while n: ")], "doesn't end")}}


def test_the_solutions_of_08_are_right():
    table = solution(scaling.NOTEBOOK, "scaling_table")
    assert table(scaling.SECONDS) == {1: (1, 1), 2: (1.6, 0.8), 4: (2.5, 0.625)}
    assert table(scaling.LONGER)[4] == (3.2, 0.8)
    fraction = solution(scaling.NOTEBOOK, "serial_fraction")
    found = [fraction(speedup, n) for speedup, n, _ in scaling.MEASURED]
    assert found == pytest.approx([0.1, 0, 1, -0.05], abs=1e-12)
