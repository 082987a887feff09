"""The figures of 07d show what they were given, and the text's numbers are those of the records."""

from statistics import fmean

import pytest

from lessons.large_batch import recipes
from lessons.large_batch_optimizers import figures


def test_the_norms_are_those_of_layers():
    norms = figures.layer_norms()
    assert list(norms.index) == list(figures.LAYERS)
    assert (norms["‖w‖ / ‖∇w‖"] > 5).all()


def test_the_text_about_the_search_for_rates_holds():
    ends = figures.tried(recipes.recorded("large_batch_search")).groupby(["optimizer", "peak rate"])["% right"].mean()
    sgd, adam, lars = (ends[optimizer].max() for optimizer in ("SGD", "Adam", "LARS"))
    assert [len(ends[optimizer]) for optimizer in figures.NAMES.values()] == [4, 5, 5, 4]
    assert round(10 * (lars - sgd)) == 7, "LARS gets seven more images in a thousand right than SGD"
    assert abs(lars - adam) < 0.05, "and no more than Adam"
    assert ends["SGD", 0.4] > sgd - 0.05 and 79 < ends["SGD", 0.8] < 82, "SGD gets a fifth wrong at 0.8"
    assert ends["LARS", 40] > lars - 0.05 and ends["LARS", 80] < 12, "LARS diverges at 80"
    assert adam - ends["Adam"].min() < 0.7, "Adam ends within seven images in a thousand of its best at all rates"


def test_the_text_about_momentum_holds():
    def reached(name, workers):
        runs = recipes.of(recipes.recorded("large_batch_recipes"), name)
        return fmean(
            100 * run["epochs"][-1]["test_accuracy"] for run in runs if run["what"]["emulate_workers"] == workers
        )

    for workers, gained in ((4, 0.2), (32, 5.2)):
        tuned = reached("SGD without momentum", workers)
        assert reached("SGD", workers) - tuned == pytest.approx(gained, abs=0.1)
        for other in ("half", "twice"):
            assert reached(f"SGD without momentum, {other} that rate", workers) < tuned
