"""The exercises of 08b accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from exercises.answers import variant, written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import time_goes

NOTEBOOK = "08b_where_the_time_goes"
straggler = partial(variant, NOTEBOOK, "straggler")
speedups = partial(variant, NOTEBOOK, "fair_speedups")


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
        "somebody always": (lambda: straggler(("max(waiting) <= 0.1", "False")), "no rank waits for more"),
        "nobody ever": (lambda: straggler(("max(waiting) <= 0.1", "True")), "return that rank's number"),
        "one thread alone": (
            lambda: speedups((' if run["cores"] >= run["threads"]', ' if run["threads"] == 1')),
            "its keys are",
        ),
        "nothing returned": (lambda: speedups(("return {", "found = {")), "it returned None"),
    }
    never_ends = {
        "a loop": (
            lambda: straggler(("return waiting.index(min(waiting))", "while True:\n        pass")),
            "doesn't end",
        )
    }
