"""The recipes of 07d_large_batch_optimizers: optimizers, with and without momentum or decay.

Also the short, badly set-up runs of 07_large_batch's clinic.

    python -m lessons.large_batch.recipes --out build/large_batch_recipes.jsonl

writes the records of assets/results/large_batch_recipes.jsonl. One process does the arithmetic of all workers.
"""

import argparse
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd
import torch

from workshop_lib.machine.world import World
from workshop_lib.notebook.results import records
from workshop_lib.paths import ROOT
from workshop_lib.training.backends.pytorch import TorchBackend
from workshop_lib.training.callbacks import methods_of
from workshop_lib.training.data import shard
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.trainer import Trainer

# A fifth of MNIST, so that all runs together take about ten minutes on one core.
CLASSIC: dict[str, Any] = {"network": "classic", "train_samples": 12_000, "epochs": 4, "warmup_epochs": 1.0}
IMAGES = 60_000  # in MNIST's training set
# Numbers of workers.
FEW = 4
MANY = 32


class Recipe(NamedTuple):
    """A recipe: its name, and its options without the seed."""

    name: str
    options: dict


def _one(name: str, workers: int, **options) -> Recipe:
    return Recipe(name, CLASSIC | {"emulate_workers": workers} | options)


HEALTHY = "healthy"
WELL: dict[str, Any] = {"emulate_workers": 8, "train_samples": 5000, "epochs": 6, "lr": 0.03, "warmup_epochs": 1.0}
PATIENTS = {
    HEALTHY: WELL,
    "A": WELL | {"weight_decay": 0.85},
    "B": WELL | {"emulate_workers": 48},
    "C": WELL | {"lr": 1.0},
    "D": WELL | {"emulate_workers": 1, "train_samples": 320, "epochs": 8},
    "E": WELL | {"lr": 0.0005},
}
# For 128 workers on all images, as 07's third exercise trains: a rate tuned alone, and the exercise's solution.
AT_128: dict[str, Any] = {"network": "classic", "emulate_workers": 128, "lr_scaling": "none", "epochs": 4}
AT_128 |= {"nesterov": False, "warmup_epochs": 0.0, "decay": "none"}
ALONE = "128 workers, only the rate tuned"
TUNED = "128 workers, tuned"
# With many workers, each optimizer is tried at two rates. Adam's follow from its rate with few workers.
RECIPES = [
    _one("SGD", FEW, lr=0.05),
    _one("SGD", MANY, lr=0.2),
    _one("SGD, twice that rate", MANY, lr=0.4),
    _one("SGD without decay", MANY, lr=0.2, decay="none"),
    *[
        _one(f"SGD without momentum{rate}", workers, lr=lr, momentum=0.0)
        for rate, lr in {"": 0.5, ", half that rate": 0.25, ", twice that rate": 1.0}.items()
        for workers in (FEW, MANY)
    ],
    _one("Adam", FEW, optimizer="adam", lr=0.003),
    _one("Adam, square-root rule", MANY, optimizer="adam", lr=0.003 * (MANY / FEW) ** 0.5),
    _one("Adam, linear rule", MANY, optimizer="adam", lr=0.003 * MANY / FEW),
    _one("Muon", FEW, optimizer="muon", lr=0.02),
    _one("Muon", MANY, optimizer="muon", lr=0.05),
    _one("Muon, twice that rate", MANY, optimizer="muon", lr=0.1),
    Recipe(ALONE, AT_128 | {"lr": 0.226, "momentum": 0.5}),
    Recipe(TUNED, AT_128 | {"lr": 0.19, "momentum": 0.9}),
]


def train(recipe: Recipe, seed: int) -> dict:
    """Train a recipe in this process; return the record of the run, with the recipe's name as "recipe"."""
    backend = TorchBackend(World(0, 1, 0, "single"), torch.device("cpu"))
    trainer = Trainer(TrainOptions(**recipe.options, seed=seed), backend, methods_of([]))
    return dict(trainer.run()) | {"recipe": recipe.name}


def recorded(name: str) -> list[dict]:
    """Return the records in assets/results/NAME.jsonl."""
    return records.read(ROOT / "assets" / "results" / f"{name}.jsonl")


def of(runs: Iterable[dict], *names: str) -> list[dict]:
    """Return the runs of these recipes, in the order of the names."""
    runs = list(runs)
    return [run for name in names for run in runs if run.get("recipe") == name]


def table(runs: Iterable[dict]) -> pd.DataFrame:
    """Return a table of final test accuracies in %, by recipe and workers: the mean over the seeds, worst and best."""
    rows = [(run["recipe"], run["what"]["emulate_workers"], 100 * run["epochs"][-1]["test_accuracy"]) for run in runs]
    frame = pd.DataFrame(rows, columns=["recipe", "workers", "accuracy"])
    groups = frame.groupby(["recipe", "workers"], sort=False)["accuracy"]
    text = groups.agg(lambda of_seeds: f"{of_seeds.mean():.1f} ({of_seeds.min():.1f} to {of_seeds.max():.1f})")
    return text.unstack().reindex(frame["recipe"].unique()).fillna("")


def steps(run: dict) -> list[int]:
    """Return the number of optimizer steps taken by the end of each epoch."""
    what = run["what"]
    per_epoch = shard.steps_per_epoch(what["train_samples"] or IMAGES, what["batch_size"], what["emulate_workers"])
    return [per_epoch * epoch for epoch in range(1, len(run["epochs"]) + 1)]


def main(arguments: list[str] | None = None) -> int:
    """Run the command shown at the top of this file; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m lessons.large_batch.recipes")
    parser.add_argument("--out", required=True, help="record file (JSON lines) to append to")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    chosen = parser.parse_args(arguments)
    for seed in chosen.seeds:
        clinic = [Recipe(*patient) for patient in PATIENTS.items()] if seed == 1 else []
        for recipe in [*clinic, *RECIPES]:
            record = train(recipe, seed)
            records.write(chosen.out, record)
            accuracy = record["epochs"][-1]["test_accuracy"]
            workers = record["what"]["emulate_workers"]
            print(f"seed {seed}, {recipe.name}, {workers} workers: test accuracy {accuracy:.2%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
