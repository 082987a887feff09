"""The checks of 08b accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from answers import variant, written
from verdicts import Verdicts

from workshop_lib.notebook.exercises import time_goes

NOTEBOOK = "08b_where_the_time_goes"
straggler = partial(variant, NOTEBOOK, "straggler")
speedups = partial(variant, NOTEBOOK, "fair_speedups")
FAIR = ' if run["cores"] >= run["threads"]'
BASE = "speed / fair[1, threads]"


class TestTimeGoes(Verdicts):
    check, notebook, names = time_goes, NOTEBOOK, ["straggler", "fair_speedups"]
    right = {
        "by sorting": lambda: written(
            "",
            "straggler(shares)",
            "order = sorted(range(len(shares)), key=lambda rank: shares[rank]['waiting'])",
            "return order[0] if shares[order[-1]]['waiting'] > 0.1 else None",
        ),
        "with a loop": lambda: written(
            "",
            "fair_speedups(runs)",
            "found = {}",
            "for run in [run for run in runs if not run['threads'] > run['cores']]:",
            "    found[run['ranks'], run['threads']] = run['samples_per_s']",
            "return {key: found[key] / found[(1, key[1])] for key in found}",
        ),
    }
    wrong = {
        "who waits longest": (
            lambda: straggler(("waiting.index(min(waiting))", "waiting.index(max(waiting))")),
            "Who does not wait",
        ),
        "who communicates longest": (
            lambda: straggler(
                ("return waiting.index(min(waiting))",
                 "talks = [r['communicating'] for r in shares]\n    return talks.index(max(talks))"),
            ),
            "communicates longest",
        ),
        "always the last": (
            lambda: straggler(("waiting.index(min(waiting))", "len(waiting) - 1")),
            "not always the last",
        ),
        "who computes longest": (
            lambda: straggler(
                ("return waiting.index(min(waiting))",
                 "work = [r['computing'] for r in shares]\n    return work.index(max(work))"),
            ),
            "it waits too",
        ),
        "somebody always": (lambda: straggler(("max(waiting) <= 0.1", "False")), "no rank waits for more"),
        "nobody ever": (lambda: straggler(("max(waiting) <= 0.1", "True")), "return its number"),
        "all runs": (lambda: speedups((FAIR, "")), "leave it out"),
        "an unfair baseline": (
            lambda: speedups((FAIR, ' if run["cores"] >= run["threads"] or run["ranks"] == 1')),
            "leave that run out",
        ),
        "one thread alone": (lambda: speedups((FAIR, ' if run["threads"] == 1')), "its keys are"),
        "a baseline with other threads": (lambda: speedups((BASE, "speed / fair[1, 1]")), "other number of"),
        "upside down": (lambda: speedups((BASE, "fair[1, threads] / speed")), "upside down"),
        "efficiency": (lambda: speedups((BASE, f"{BASE} / n")), "the efficiency"),
        "not divided": (lambda: speedups((BASE, "speed")), "divide by the baseline"),
        "nothing returned": (lambda: speedups(("return {", "found = {")), "it returned None"),
    }  # fmt: skip
    never_ends = {
        "a loop": (
            lambda: straggler(("return waiting.index(min(waiting))", "while True:\n        pass")),
            "does not end",
        ),
    }
