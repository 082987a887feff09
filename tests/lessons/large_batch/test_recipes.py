"""Recipes: what a run in phases is, and how runs are summed up."""

from record_fixtures import run

from workshop_lib.notebook.results import records
from workshop_lib.training.options import TrainOptions

from lessons.large_batch import recipes
from lessons.large_batch.recipes import Recipe


def told(name, accuracies, workers=8, seed=1, phases=None):
    record = run(accuracies=accuracies, speeds=(1.0,) * len(accuracies))
    what = TrainOptions(emulate_workers=workers, seed=seed, train_samples=6400, epochs=len(accuracies)).as_dict()
    alone = [{"epochs": len(accuracies), "emulate_workers": workers}]
    return record | {"recipe": name, "what": record["what"] | what, "phases": phases or alone}


GROWN = [{"epochs": 2, "emulate_workers": 10}, {"epochs": 1, "emulate_workers": 50}]
RUNS = [told("grown", (0.5, 0.8, accuracy), 10, seed, GROWN) for seed, accuracy in enumerate((0.9, 0.7))]
RUNS += [told("constant", (0.5, 0.8, 0.85), 10)]


def test_the_table_has_the_mean_the_worst_and_the_best_of_each_recipe():
    assert recipes.table(RUNS).loc["grown", 10] == "80.0 (70.0 to 90.0)"


def test_steps_are_those_of_each_phase_also_where_there_is_one():
    assert recipes.steps(RUNS[0]) == [10, 20, 22]
    plain = told("", (0.5, 0.8))
    del plain["phases"]
    assert recipes.steps(plain) == [13, 26]
    assert recipes.of(RUNS, "constant", "grown") == [RUNS[2], *RUNS[:2]]


def test_a_phase_goes_on_where_the_one_before_it_ended(small_mnist):
    same = {"data_dir": small_mnist, "train_samples": 640, "epochs": 1, "warmup_epochs": 0.0, "decay": "none"}
    learns, stands_still = same | {"lr": 0.05, "emulate_workers": 1}, same | {"lr": 1e-12, "emulate_workers": 5}
    record = recipes.train(Recipe("both", [learns, stands_still]), seed=1)
    first, second = record["epochs"]
    assert first["test_accuracy"] == second["test_accuracy"] > 0.3
    assert [first["epoch"], second["epoch"]] == [1, 2]
    assert record["recipe"] == "both"
    assert recipes.steps(record) == [10, 12]
    assert [phase["lr"] for phase in record["phases"]] == [0.05, 1e-12]


def test_the_command_writes_the_runs_that_the_table_reads(monkeypatch, small_mnist, tmp_path, capsys):
    tiny = {"data_dir": small_mnist, "train_samples": 640, "epochs": 1, "warmup_epochs": 0.0}
    monkeypatch.setattr(recipes, "PATIENTS", {})
    monkeypatch.setattr(recipes, "RECIPES", [Recipe("tiny", [tiny | {"emulate_workers": 2}])])
    out = tmp_path / "runs.jsonl"
    assert recipes.main(["--seeds", "3", "--out", str(out)]) == 0
    assert recipes.table(records.read(out)).index.tolist() == ["tiny"]
    assert "seed 3, tiny, 2 workers: test accuracy" in capsys.readouterr().out


def test_every_recipe_and_patient_can_be_trained_on_the_ranks_of_a_laptop():
    for options in [*recipes.PATIENTS.values(), *(phase for recipe in recipes.RECIPES for phase in recipe.phases)]:
        assert TrainOptions(**options).workers(2)
    names = [(recipe.name, recipe.phases[0]["emulate_workers"]) for recipe in recipes.RECIPES]
    assert len(set(names)) == len(names)
