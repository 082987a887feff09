"""The page on how our results differ from the documents': its numbers are those of the records."""

import pytest

from workshop_lib.notebook.results import curves, records
from workshop_lib.paths import ROOT

from lessons.gradient_noise import critical_batch, steps_to_target
from lessons.large_batch import recipes

PAGE = " ".join((ROOT / "book" / "differences.md").read_text(encoding="utf-8").replace("**", "").split())
RESULTS = ROOT / "assets" / "results"


def listed(values) -> str:
    """Three accuracies as the page lists them."""
    first, second, third = (f"{value:.1f} %" for value in values)
    return f"{first}, {second} and {third}"


@pytest.fixture(scope="module")
def ends():
    return curves.accuracies(records.read(RESULTS / "large_batch.jsonl"))


def test_the_accuracies_of_many_workers_are_those_of_the_record(ends):
    linear = ends[ends["recipe"] == "linear"]
    warm = ends[ends["recipe"] == "linear, 5 warm-up epochs"]
    for runs, workers in ((linear, 64), (linear, 128), (linear, 256), (warm, 64), (warm, 128)):
        at = runs[runs["workers"] == workers].sort_values("seed")
        assert listed(at["test_accuracy"]) in PAGE, (workers, listed(at["test_accuracy"]))
    few = linear[linear["workers"] <= 32]["test_accuracy"]
    assert f"between {few.min():.1f} % and {few.max():.1f} %" in PAGE
    assert {f"{each:.1f}" for each in warm[warm["workers"] == 256]["test_accuracy"]} == {"11.3"}


def test_there_is_no_generalization_gap_in_the_record(ends):
    lars = ends[ends["recipe"].str.startswith("LARS")].groupby("workers")[["train_accuracy", "test_accuracy"]].mean()
    fell = lars.loc[8] - lars.loc[256]
    assert f"falls by {fell['train_accuracy']:.1f} points" in PAGE
    assert f"test accuracy by {fell['test_accuracy']:.1f}" in PAGE


def test_the_critical_batch_is_that_of_the_record():
    runs = records.read(RESULTS / "steps_to_target.jsonl")
    law = critical_batch.fit(*steps_to_target.pairs(runs))
    low, high = law.intervals["b_crit"]
    assert f"and {sum(run['steps'] is None for run in runs)} of the runs never got there" in PAGE and len(runs) == 126
    assert f"the critical batch is {law.b_crit:.0f} (95 % interval: {low:.0f} to {high:.0f}" in PAGE
    steps, samples = law.steps(8192) / law.s_min, law.samples(8192) / law.e_min
    assert f"needs {steps:.2f} times" in PAGE and f"but {samples:.0f} times the fewest" in PAGE
    root = 60_000**0.5
    steps, samples = law.steps(root) / law.s_min, law.samples(root) / law.e_min
    assert f"that's {root:.0f}, about {root / law.b_crit:.0f}".replace(" 3", " three") in PAGE
    assert f"needs {steps:.1f} times the fewest steps and {samples:.1f} times the fewest samples" in PAGE


def test_the_optimizers_are_those_of_the_record():
    names = ["SGD", "SGD, twice that rate", "SGD without decay", "Adam", "Adam, square-root rule", "Adam, linear rule"]
    table = recipes.table(recipes.of(records.read(RESULTS / "large_batch_recipes.jsonl"), *names))
    few, many = ({name: entry.partition(" ")[0] for name, entry in table[n].items()} for n in (4, 32))
    assert f"{few['SGD']} %, and {few['Adam']} % with Adam" in PAGE
    assert f"{many['Adam, square-root rule']} % and {many['Adam, linear rule']} %" in PAGE
    assert f"{many['SGD']} %, or {many['SGD, twice that rate']} % at twice its rate" in PAGE
    assert f"{many['SGD without decay']} % without it and {many['SGD']} % with it" in PAGE
