"""Recipes: how their runs are recorded and summed up."""

from record_fixtures import run

from workshop_lib.notebook.results import records
from workshop_lib.training.options import TrainOptions

from lessons.large_batch import recipes
from lessons.large_batch.recipes import Recipe


def told(name, accuracies, workers=10, seed=1):
    record = run(accuracies=accuracies, speeds=(1.0,) * len(accuracies))
    what = TrainOptions(emulate_workers=workers, seed=seed, train_samples=6400, epochs=len(accuracies)).as_dict()
    return record | {"recipe": name, "what": record["what"] | what}


RUNS = [told("varied", (0.5, 0.8, accuracy), seed=seed) for seed, accuracy in enumerate((0.9, 0.7))]
RUNS += [told("constant", (0.5, 0.8, 0.85))]


def test_the_table_has_the_mean_the_worst_and_the_best_of_each_recipe():
    assert recipes.table(RUNS).loc["varied", 10] == "80.0 (70.0 to 90.0)"
    assert recipes.of(RUNS, "constant", "varied") == [RUNS[2], *RUNS[:2]]


def test_steps_are_counted_by_the_end_of_each_epoch_also_where_the_last_one_is_smaller():
    assert recipes.steps(RUNS[0]) == [10, 20, 30]
    assert recipes.steps(told("", (0.5, 0.8), workers=8)) == [13, 26]


def test_the_command_writes_the_runs_that_the_table_reads(monkeypatch, small_mnist, tmp_path, capsys):
    tiny = {"data_dir": small_mnist, "train_samples": 640, "epochs": 1, "warmup_epochs": 0.0, "emulate_workers": 2}
    monkeypatch.setattr(recipes, "PATIENTS", {})
    monkeypatch.setattr(recipes, "RECIPES", [Recipe("tiny", tiny)])
    out = tmp_path / "runs.jsonl"
    assert recipes.main(["--seeds", "3", "--out", str(out)]) == 0
    assert recipes.table(records.read(out)).index.tolist() == ["tiny"]
    assert "seed 3, tiny, 2 workers: test accuracy" in capsys.readouterr().out


def test_every_recipe_and_patient_can_be_trained_on_the_ranks_of_a_laptop():
    for options in [*recipes.PATIENTS.values(), *(recipe.options for recipe in recipes.RECIPES)]:
        assert TrainOptions(**options).workers(2)
    names = [(recipe.name, recipe.options["emulate_workers"]) for recipe in recipes.RECIPES]
    assert len(set(names)) == len(names)
