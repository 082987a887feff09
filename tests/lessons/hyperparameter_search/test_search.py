"""The exercises of 14 accept every right way to draw, to halve and to report, and name the mistake in a wrong one."""

from functools import partial

import pytest
from judge.answers import from_source, variant, written
from judge.verdicts import Verdicts, planted

from workshop_lib.lessons.hyperparameter_search import judge as check
from workshop_lib.lessons.hyperparameter_search import judge_halving as halving

pytestmark = pytest.mark.usefixtures("healthy")

NOTEBOOK = "14_hyperparameter_search"
LOOP, BEST = "for rung in reversed(range(len(self.rungs) - 1)):", "len(scores) // self.eta"
SCORES, NOT_SENT = "scores = self.scores[rung]", "if trial not in self.sent_on[rung]:"
HEAP = '''
import heapq

class Asha:
    """The lowest rung first, trials numbered from 5, heaps instead of sorting."""

    def __init__(self, draw, rungs, eta=3):
        self.draw, self.rungs, self.eta = draw, rungs, eta
        self.of = {}
        self.reached, self.next = {}, 5

    def ask(self):
        for rung in range(len(self.rungs) - 1):
            there = {t: s[rung] for t, s in self.reached.items() if len(s) > rung}
            for trial in heapq.nlargest(int(len(there) / self.eta), there, key=there.get):
                if self.of[trial][1] == rung:
                    self.of[trial][1] = rung + 1
                    return [trial, self.of[trial][0], self.rungs[rung + 1]]
        trial, self.next = self.next, self.next + 1
        self.of[trial], self.reached[trial] = [self.draw(), 0], []
        return [trial, self.of[trial][0], self.rungs[0]]

    def tell(self, trial, images, accuracy):
        self.reached[trial].append(accuracy)
'''


class TestSearch(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["draw", "Asha", "winner"]
    right = {
        "with exp and log": lambda: written(
            "import math",
            "draw(random)",
            "lr = math.exp(random.uniform(math.log(0.001), math.log(1)))",
            "return {'batch': 2 ** random.integers(4, 8), 'momentum': (0, 0.5, 0.9)[random.integers(3)], 'lr': lr}",
        ),
        "with logspace": lambda: written(
            "import numpy as np",
            "draw(random)",
            "rest = {'batch': random.choice([16, 32, 64, 128]), 'momentum': random.choice([0.0, 0.5, 0.9])}",
            "return rest | {'lr': 0.001 * 1000 ** random.random()}",
        ),
        "with heaps": lambda: from_source(HEAP, "Asha"),
        "sorted": lambda: written(
            "",
            "winner(rows)",
            "*_, best = sorted(rows, key=lambda row: row['held_out'])",
            "return [best['trial'], best['test']]",
        ),
    }
    wrong = planted(
        NOTEBOOK,
        {
            "draw": {
                "a list": ([('{"lr": float(lr), ', '[lr], {')], "dictionary"),
                "two momenta": ([("[0.0, 0.5, 0.9]", "[0.0, 0.9]")], "momentum was drawn as"),
                "batches by tens": ([("[16, 32, 64, 128]", "[10, 100]")], "batch was drawn as"),
                "uniform": ([("10 ** random.uniform(-3, 0)", "random.uniform(0.001, 1)")], "draw the exponent"),
                "four rates": ([("10 ** random.uniform(-3, 0)", "random.choice([0.001, 0.01, 0.1, 1])")], "a grid"),
            },
            "Asha": {
                "ascending": ([(", reverse=True", "")], "those are the worst"),
                "twice": ([("self.sent_on[rung].add(trial)", "pass")], "remember whom you've sent on"),
                "from zero": ([("self.rungs[rung + 1]", "self.rungs[rung + 1] - self.rungs[rung]")], "first image on"),
                "a new setting": ([("trial, self.settings[trial], ", "trial, self.draw(), ")], "keep each trial's"),
                "one rung": ([("range(len(self.rungs) - 1)", "range(1)")], "it stops at the second rung"),
                "across rungs": (
                    [
                        (SCORES, "scores = {trial: score for rung in self.scores for trial, score in rung.items()}"),
                        (NOT_SENT, f"if trial in self.scores[rung] and {NOT_SENT[3:]}"),
                    ],
                    halving.NOT_BEST_HINTS["ahead"],
                ),
                "waits for the rung": (
                    [
                        (
                            LOOP,
                            "if self.eta ** (len(self.rungs) - 1) <= len(self.settings) > len(self.scores[0]):\n"
                            f"            return None\n        {LOOP}",
                        )
                    ],
                    halving.IDLE_HINT,
                ),
                "waits for a full rung": (
                    [(BEST, f"{BEST} if len(scores) >= self.eta ** (len(self.rungs) - 1 - rung) else 0")],
                    halving.MISSED_HINTS["some"],
                ),
                "rounds up": ([(BEST, "-(-len(scores) // self.eta)")], halving.NOT_BEST_HINTS["early"]),
                "of those that are left": (
                    [(SCORES, "scores = {t: s for t, s in self.scores[rung].items() if t not in self.sent_on[rung]}")],
                    halving.NOT_BEST_HINTS["leftover"],
                ),
                "at random": ([("range(len(self.rungs) - 1)", "range(0)")], halving.MISSED_HINTS["never"]),
                "from the top": ([("[-1], self.rungs[0]", "[-1], self.rungs[-1]")], halving.BOTTOM_HINT),
                "to the top": ([("self.rungs[rung + 1]", "self.rungs[-1]")], "none of the known mistakes"),
                "nothing": ([("return trial, self", "return None, self")], "`ask` returned"),
            },
            "winner": {
                "the number alone": ([('best["trial"], best["test"]', 'best["trial"]')], "it returned"),
            },
        },
    )  # fmt: skip


def test_an_error_in_a_scheduler_is_told_with_its_line():
    verdict = check.Asha(partial(variant, NOTEBOOK, "Asha", ("scores.get", "score.get"))())
    assert verdict.passed is False
    assert "NameError" in verdict.details and "score.get" in verdict.details
