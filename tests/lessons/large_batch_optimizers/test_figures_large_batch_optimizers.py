"""The figures of 07d show what they were given, and the text's numbers are those of the records."""

import numpy as np
import pytest
from drawn import bars, check_layout, curve, lines
from record_fixtures import run

from workshop_lib.lessons.large_batch import recipes
from workshop_lib.lessons.large_batch_optimizers import figures
from workshop_lib.training.options import TrainOptions

GROWN = [{"epochs": 2, "emulate_workers": 10}, {"epochs": 1, "emulate_workers": 50}]
ALONE = [{"epochs": 3, "emulate_workers": 10}]


def told(accuracies, recipe="", phases=None, **options):
    record = run(accuracies=accuracies, speeds=(1.0,) * len(accuracies))
    what = TrainOptions(train_samples=6400, epochs=len(accuracies), **options).as_dict()
    return record | {"recipe": recipe, "what": record["what"] | what, "phases": phases}


def test_phases_lie_at_their_epochs_and_at_their_steps():
    grown = [told((0.5, 0.8, last), "grown", GROWN, emulate_workers=10) for last in (0.9, 0.7)]
    figure = figures.phases([*grown, told((0.5, 0.8, 0.85), "constant", ALONE, emulate_workers=10)])
    assert [list(curve(figure.axes[1], number)[0]) for number in range(2)] == [[10, 20, 22], [10, 20, 30]]
    assert bars(figure.axes[0])[-1] == pytest.approx([70, 90])
    check_layout(figure)


def test_each_layer_is_a_line_in_each_panel():
    figure = figures.layer_rates({"16": np.ones((3, 4)), "128": np.ones((2, 4))})
    assert [set(lines(axes)) for axes in figure.axes] == [set(figures.LAYERS)] * 2
    check_layout(figure)


TRIED = [told((last,), optimizer="adam", lr=lr) for lr, last in ((0.01, 0.9), (0.02, 0.96), (0.02, 0.98), (0.04, 0.99))]


def test_the_best_rate_is_chosen_by_its_mean():
    assert figures.best(TRIED[:3], "adam") == pytest.approx(97)


def test_wrong_images_are_drawn_against_multiples_of_the_lowest_rate():
    figure = figures.search([*TRIED, *(told((0.5,), optimizer=each) for each in ("sgd", "lars", "lamb"))])
    rates, wrong = curve(figure.axes[0], 1)
    assert list(rates) == [1, 2, 4]
    assert list(wrong) == pytest.approx([10, 3, 1])
    check_layout(figure)


def test_the_norms_are_those_of_layers():
    norms = figures.layer_norms()
    assert list(norms.index) == list(figures.LAYERS)
    assert (norms["‖w‖ / ‖∇w‖"] > 5).all()


def test_the_text_about_the_search_for_rates_holds():
    search = recipes.recorded("large_batch_search")
    rows = figures.tried(search)
    rates = rows.groupby("optimizer")["peak rate"].count()
    assert [rates[optimizer] for optimizer in figures.NAMES] == [4, 5, 5, 4]
    sgd, adam, lars = (figures.best(search, optimizer) for optimizer in ("sgd", "adam", "lars"))
    assert round(10 * (lars - sgd)) == 7, "LARS gets seven more images in a thousand right than SGD"
    assert abs(lars - adam) < 0.05, "and no more than Adam"
    ends = rows.set_index(["optimizer", "peak rate"])["mean"]
    assert ends["sgd", 0.4] > sgd - 0.05 and 79 < ends["sgd", 0.8] < 82, "SGD gets a fifth wrong at 0.8"
    assert ends["lars", 40] > lars - 0.05 and ends["lars", 80] < 12, "LARS diverges at 80"
    assert adam - ends["adam"].min() < 0.7, "Adam ends within seven images in a thousand of its best at all rates"
