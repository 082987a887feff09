"""The checks of 08 accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from exercises.answers import variant, written
from exercises.verdicts import Verdicts, planted

from workshop_lib.exercises import scaling as check

NOTEBOOK = "08_scaling_curves"
NAMES = ["scaling_table", "serial_fraction", "smallest_batch"]
IMPORTS = "import math\nimport numpy as np\nfrom statistics import mean, median"

TYPICAL = "median(mean(run[1:]) for run in runs)"
SPEEDUP = "(typical_s[1] / s, typical_s[1] / s / n)"
FRACTION = "(1 / speedup - 1 / n) / (1 - 1 / n)"
COMMUNICATION = "latency_s + s_per_byte * message_bytes"
COMPUTING = "communication_s * (1 - share) / share"
SAMPLES = "math.ceil((computing_s - t0_s) / t1_s)"
BATCH_HEAD = "smallest_batch(share, message_bytes, t0_s, t1_s, latency_s, s_per_byte)"


RIGHT = {
    "with numpy": (
        "scaling_table(seconds)",
        """\
time = {n: np.median(np.array(runs)[:, 1:].sum(axis=1)) for n, runs in seconds.items()}
return {n: [time[1] / time[n], time[1] / (n * time[n])] for n in sorted(time)}""",
    ),
    "one median of all epochs but the first": (
        "scaling_table(seconds)",
        """\
time = {n: median(s for run in runs for s in run[1:]) for n, runs in seconds.items()}
return {n: (time[1] / time[n], time[1] / time[n] / n) for n in time}""",
    ),
    "another form": ("serial_fraction(speedup, n)", "return (n / speedup - 1) / (n - 1)"),
    "by trying": (
        BATCH_HEAD,
        f"""\
batch, communication_s = 1, {COMMUNICATION}
while communication_s > share * (communication_s + t0_s + t1_s * batch):
    batch += 1
return batch""",
    ),
    "as a float": (BATCH_HEAD, f"return max(1.0, np.ceil((({COMMUNICATION}) * (1 / share - 1) - t0_s) / t1_s))"),
}


def function(head: str, body: str):
    return written(IMPORTS, head, *body.splitlines())


def with_speedup(text: str) -> list:
    """The solution with another speed-up, from which efficiency follows."""
    return [(SPEEDUP, f"({text}, ({text}) / n)")]


WRONG = {
    "scaling_table": {
        "first epoch included": ([("run[1:]", "run")], "take the epochs after it"),
        "first epoch included, mean": ([(TYPICAL, "mean(mean(run) for run in runs)")], "not their mean"),
        "first epoch included, best": ([(TYPICAL, "min(mean(run) for run in runs)")], "not the fastest"),
        "first epoch included, one median": (
            [(TYPICAL, "median(s for run in runs for s in run)")],
            "take the epochs after it",
        ),
        "first epochs alone": ([("run[1:]", "run[:1]")], "the first epochs alone"),
        "the best": ([(TYPICAL, "min(mean(run[1:]) for run in runs)")], "chance makes a run fast"),
        "the worst": ([(TYPICAL, "max(mean(run[1:]) for run in runs)")], "the slowest run"),
        "the mean": ([(TYPICAL, "mean(mean(run[1:]) for run in runs)")], "the mean of the runs"),
        "the first run": ([(TYPICAL, "mean(runs[0][1:])")], "the first run of each alone"),
        "the last run": ([(TYPICAL, "mean(runs[-1][1:])")], "the last run of each alone"),
        "not sorted": ([(TYPICAL, "mean(runs[len(runs) // 2][1:])")], "without sorting"),
        "upside down": (with_speedup("s / typical_s[1]"), "upside down"),
        "against half the ranks": (with_speedup("typical_s[max(1, n // 2)] / s"), "always 1 rank"),
        "against the most ranks": (with_speedup("typical_s[4] / s"), "the baseline is 1 rank"),
        "against what comes first": (with_speedup("next(iter(typical_s.values())) / s"), "whatever came first"),
        "seconds": (with_speedup("s"), "those are seconds"),
        "per cent faster": (with_speedup("100 * (typical_s[1] / s - 1)"), "a ratio"),
        "the other way round": ([(SPEEDUP, "(typical_s[1] / s / n, typical_s[1] / s)")], "speed-up comes first"),
        "efficiency not divided": ([("/ s / n)", "/ s)")], "that is the speed-up again"),
        "efficiency multiplied": ([("/ s / n)", "/ s * n)")], "divide it"),
        "efficiency in per cent": ([("/ s / n)", "/ s / n * 100)")], "1 is perfect"),
        "efficiency upside down": ([("typical_s[1] / s / n)", "n * s / typical_s[1])")], "upside down"),
        "divided by the most": ([("/ s / n)", "/ s / max(seconds))")], "by the largest number of ranks"),
        "the second epoch alone": ([("mean(run[1:])", "run[1]")], "only the second epoch"),
        "the last epoch alone": ([("mean(run[1:])", "run[-1]")], "only the last epoch"),
        "without 1 rank": ([("in typical_s.items()", "in typical_s.items() if n > 1")], "1 included"),
        "speed-up alone": ([(SPEEDUP, "typical_s[1] / s")], "it returned"),
        "prints": ([("return {", "print({"), ("typical_s.items()}", "typical_s.items()})")], "`return` the table"),
    },
    "serial_fraction": {
        "half solved": ([(FRACTION, "1 / speedup - 1 / n")], "Divide by 1 - 1/n"),
        "1/S": ([(FRACTION, "1 / speedup")], "solve 1/S"),
        "efficiency": ([(FRACTION, "speedup / n")], "That is the efficiency"),
        "what is missing to 1": ([(FRACTION, "1 - speedup / n")], "1 minus the efficiency"),
        "the parallel part": ([(FRACTION, f"1 - {FRACTION}")], "the share of the work that is shared out"),
        "the sign": ([("1 / speedup - 1 / n", "1 / n - 1 / speedup")], "wrong way round"),
        "Gustafson": ([(FRACTION, "(n - speedup) / (n - 1)")], "Gustafson"),
        "per cent": ([(FRACTION, f"100 * {FRACTION}")], "not in per cent"),
        "the law itself": ([(FRACTION, "1 / (speedup + (1 - speedup) / n)")], "it is 0.1, not"),
        "whole numbers": ([("1 / n)", "1 // n)")], "it is 0.1, not"),
        "cut off at 0": ([(FRACTION, f"max(0, {FRACTION})")], "Do not cut it off"),
        "nothing returned": ([("return ", "")], "`return` the fraction"),
        "a text": ([(FRACTION, f"f'{{{FRACTION}:.0%}}'")], "it returned '10%'"),
    },
    "smallest_batch": {
        "rounded down": ([("math.ceil", "math.floor")], "round up"),
        "rounded": ([("math.ceil", "round")], "round up"),
        "the share of computing": ([(COMPUTING, "communication_s / share")], "the step is both"),
        "without t0": ([("(computing_s - t0_s)", "computing_s")], "t0 is there without any sample"),
        "with t0 added": ([("computing_s - t0_s", "computing_s + t0_s")], "take t0 off"),
        "without the latency": ([("latency_s + s_per_byte", "s_per_byte")], "latency is missing"),
        "the latency alone": ([(COMMUNICATION, "latency_s")], "bytes are missing"),
        "four bytes a byte": ([("* message_bytes", "* 4 * message_bytes")], "no factor of 4"),
        "the other share": ([(COMPUTING, "communication_s * share / (1 - share)")], "*computing* is at most"),
        "not divided by the share": ([(COMPUTING, "communication_s * (1 - share)")], "(1 - share)/share"),
        "below one": ([("max(1, ", "(")], "max(1"),
        "at least two": ([("max(1, ", "max(2, ")], "it is 1, not 2"),
        "a share of 20 % always": ([(COMPUTING, "communication_s * 4")], "it is 19, not"),
        "nothing returned": ([("return ", "")], "`return` the number"),
    },
}
ENDLESS = {
    name: {"a loop": ([change], "the function does not end")}
    for name, change in {
        "scaling_table": ("return {", "while True: pass\n    return {"),
        "serial_fraction": ("return ", "while n: "),
        "smallest_batch": ("return ", "while share: "),
    }.items()
}


class TestVerdicts(Verdicts):
    check, notebook, names = check, NOTEBOOK, NAMES
    right = {title: partial(function, head, body) for title, (head, body) in RIGHT.items()}
    wrong, never_ends = planted(NOTEBOOK, WRONG), planted(NOTEBOOK, ENDLESS)


def test_it_is_the_learners_function_that_runs(team):
    team.push(seen=[])
    body = "import __ranks__\n__ranks__.seen.append(n)\nreturn 0.5"
    assert check.serial_fraction(function("serial_fraction(speedup, n)", body)).passed is False
    assert team.pull("seen") == [[8, 4, 3, 4]] * 2


def test_an_error_in_the_function_is_told_with_its_line():
    verdict = check.scaling_table(variant(NOTEBOOK, "scaling_table", ("run[1:]", "run[1:] / 2")))
    assert verdict.passed is False
    assert "TypeError" in verdict.failed
    assert "run[1:] / 2" in verdict.failed
