"""The exercises of 08 accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from exercises.answers import written
from exercises.verdicts import Verdicts, planted

from workshop_lib.exercises import scaling as check

NOTEBOOK = "08_scaling_curves"
TYPICAL = "median(mean(run[1:]) for run in runs)"
SPEEDUP = "(typical_s[1] / s, typical_s[1] / s / n)"
FRACTION = "(1 / speedup - 1 / n) / (1 - 1 / n)"
TABLE = "scaling_table(seconds)"
answer = partial(written, "import numpy as np\nfrom statistics import mean, median")

WRONG = {
    "scaling_table": {
        "not sorted": ([(TYPICAL, "mean(runs[len(runs) // 2][1:])")], "without sorting"),
        "without 1 rank": ([("in typical_s.items()", "in typical_s.items() if n > 1")], "1 included"),
        "speed-up alone": ([(SPEEDUP, "typical_s[1] / s")], "it returned"),
        "prints": ([("return {", "print({"), ("typical_s.items()}", "typical_s.items()})")], "`return` the table"),
    },
    "serial_fraction": {
        "whole numbers": ([("1 / n)", "1 // n)")], "that is 0"),
        "something unknown": ([(FRACTION, f"2 * {FRACTION}")], "none of the known mistakes"),
        "nothing returned": ([("return ", "")], "`return` the fraction"),
        "a text": ([(FRACTION, f"f'{{{FRACTION}:.0%}}'")], "it returned '10%'"),
    },
}
ENDLESS = {
    name: {"a loop": ([change], "doesn't end")}
    for name, change in {
        "scaling_table": ("return {", "while True: pass\n    return {"),
        "serial_fraction": ("return ", "while n: "),
    }.items()
}


class TestScalingCurves(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["scaling_table", "serial_fraction"]
    right = {
        "with numpy": lambda: answer(
            TABLE,
            "time = {n: np.median(np.array(runs)[:, 1:].sum(axis=1)) for n, runs in seconds.items()}",
            "return {n: [time[1] / time[n], time[1] / (n * time[n])] for n in sorted(time)}",
        ),
        "one median of all epochs but the first": lambda: answer(
            TABLE,
            "time = {n: median(s for run in runs for s in run[1:]) for n, runs in seconds.items()}",
            "return {n: (time[1] / time[n], time[1] / time[n] / n) for n in time}",
        ),
        "another form": lambda: answer("serial_fraction(speedup, n)", "return (n / speedup - 1) / (n - 1)"),
    }
    wrong, never_ends = planted(NOTEBOOK, WRONG), planted(NOTEBOOK, ENDLESS)


def test_it_is_the_learners_function_that_runs(team):
    team.push(seen=[])
    body = "import __ranks__", "__ranks__.seen.append(n)", "return 0.5"
    assert check.serial_fraction(answer("serial_fraction(speedup, n)", *body)).passed is False
    assert team.pull("seen") == [[8, 4, 3, 4]] * 2
