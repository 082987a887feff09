"""The exercises about scaling, of 08 and 08b: right answers pass, and wrong ones get the hint that names the
mistake."""

import pytest
from judge.answers import solution
from judge.verdicts import Verdicts

from workshop_lib.lessons.scaling_curves import judge as scaling
from workshop_lib.lessons.where_the_time_goes import judge as time_goes

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
    wrong = {
        "scaling_table": {
            "not sorted": ([(scaling.TYPICAL, "mean(runs[len(runs) // 2][1:])")], "without sorting"),
            "speed-up alone": (
                [(scaling.SPEEDUP, "typical_s[1] / s")],
                "the keys 1, 2, 4 (each a number). It should `return`",
            ),
            "prints": ([("return {", "print({"), ("typical_s.items()}", "typical_s.items()})")], "returned nothing"),
        },
        "serial_fraction": {
            "something unknown": ([(scaling.FRACTION, f"2 * {scaling.FRACTION}")], "none of the known mistakes"),
            "nothing returned": ([("return ", "")], "It should `return` a number: the fraction"),
            "a text": ([(scaling.FRACTION, f"f'{{{scaling.FRACTION}:.0%}}'")], "it returned '10%'"),
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


class TestTimeGoes(Verdicts):
    check, notebook, names = time_goes, time_goes.NOTEBOOK, ["straggler", "fair_speedups"]
    right = {
        "straggler": {
            "with numpy": """
                def straggler(arrived_s, seconds):
                    import numpy as np
                    arrived = np.array(arrived_s)
                    waiting = (arrived.max(axis=1, keepdims=True) - arrived).sum(axis=0) / seconds
                    return waiting.tolist(), waiting.argmin()
                """
        },
        "fair_speedups": {
            "with a loop": """
                def fair_speedups(runs):
                    found = {}
                    for run in [run for run in runs if not run["threads"] > run["cores"]]:
                        found[run["ranks"], run["threads"]] = run["samples_per_s"]
                    return {key: found[key] / found[(1, key[1])] for key in found}
                """
        },
    }
    wrong = {
        "straggler": {
            "the rank alone": ([("return waiting, waiting", "return waiting")], "the share of its time"),
            "nothing returned": ([("return waiting, waiting", "waiting, waiting")], "it returned nothing"),
        },
        "fair_speedups": {
            "one thread alone": (
                [(f" if {time_goes.USED}", ' if run["threads"] == 1')],
                "the keys (4, 1), (1, 1), (2, 1) (each a number)",
            ),
            "nothing returned": ([("return {", "found = {")], "it returned nothing"),
        },
    }
