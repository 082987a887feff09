"""The figure of accuracy against workers, from made-up records."""

import pytest
from record_fixtures import run

from workshop_lib.notebook.results.curves import accuracies, recipe
from workshop_lib.notebook.results.records import RecordError
from workshop_lib.training.options import TrainOptions


def emulated(workers, accuracy, seed=1, **changes):
    record = run(accuracies=(0.5, accuracy), speeds=(1.0, 1.0))
    options = {"lr_scaling": "linear", "warmup_epochs": 0.0, "network": "classic", "epochs": 2} | changes
    what = TrainOptions(emulate_workers=workers, seed=seed, **options).as_dict()
    return record | {"what": record["what"] | what}


FOUND = [
    emulated(n, accuracy, seed)
    for n, worst, best in ((8, 0.97, 0.98), (128, 0.11, 0.11), (256, 0.10, 0.12))
    for seed, accuracy in enumerate((worst, best))
] + [emulated(n, 0.97, warmup_epochs=5.0) for n in (8, 128)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "linear"),
        ({"warmup_epochs": 5.0}, "linear, 5 warm-up epochs"),
        ({"warmup_epochs": 5.0, "warmup": "constant"}, "linear, 5 constant warm-up epochs"),
        ({"lr_scaling": "sqrt"}, "square root"),
        ({"optimizer": "lars", "lr_scaling": "none"}, "LARS, rate 0.1"),
    ],
)
def test_recipes_in_words(options, expected):
    assert recipe(emulated(8, 0.9, **options)["what"]) == expected


def test_one_row_a_finished_run_with_its_last_epoch():
    stopped = emulated(8, 0.5) | {"stopped": True}
    rows = accuracies([*FOUND, stopped, {"kind": "bench"}])
    assert len(rows) == len(FOUND)
    columns = ["recipe", "workers", "seed", "test_accuracy", "train_accuracy"]
    assert set(rows.columns) == set(columns)
    assert rows.iloc[0][columns].tolist() == ["linear", 8, 0, 97.0, 97.0]


def test_runs_that_differ_in_more_than_the_recipe_are_refused():
    with pytest.raises(RecordError, match="epochs = 2 and 3"):
        accuracies([*FOUND, emulated(8, 0.9, epochs=3)])
    with pytest.raises(RecordError, match="lr = 0.1 and 0.2"):
        accuracies([*FOUND, emulated(8, 0.9, seed=3, lr=0.2)])
    with pytest.raises(RecordError, match="nothing to draw"):
        accuracies([])
