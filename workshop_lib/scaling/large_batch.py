"""Accuracy against the number of workers, from records of runs that emulate them."""

from collections.abc import Iterable

import pandas as pd

from workshop_lib.scaling.curves import require_same
from workshop_lib.scaling.records import RecordError

# What the runs of one figure must have in common.
SAME = ("network", "batch_size", "epochs", "train_samples", "max_steps", "data_dir")
SAME_RECIPE = ("lr", "momentum", "nesterov", "decay")  # and those of one curve, whose name does not tell them

# Read off the scaling figure of the Theta hands-on: Horovod's PyTorch MNIST example on 128 nodes, 32 epochs,
# learning rate 0.01 times the ranks, no warm-up. Training accuracy in %, by ranks.
PUBLISHED = {8: 96, 16: 96, 32: 96, 64: 93, 128: 11, 256: 11}


def recipe(what: dict) -> str:
    """How a run sets the learning rate for its workers, in words: "linear, 5 warm-up epochs"."""
    parts = [] if what["optimizer"] == "sgd" else [what["optimizer"].upper()]
    parts.append({"none": "not scaled", "sqrt": "square root", "linear": "linear"}[what["lr_scaling"]])
    if what["warmup_epochs"]:
        kind = "constant " if what["warmup"] == "constant" else ""
        parts.append(f"{what['warmup_epochs']:g} {kind}warm-up epochs")
    return ", ".join(parts)


def accuracies(found: Iterable[dict]) -> pd.DataFrame:
    """One row a run: recipe, workers, seed, and of its last epoch test_accuracy and train_accuracy in %.

    Raises RecordError when runs are mixed that differ in more than the recipe, or those of one recipe in more
    than the workers and the seed, or when none has ended.
    """
    runs = [record for record in found if record.get("kind") == "train" and record["epochs"]]
    runs = [record for record in runs if not record["stopped"]]
    if not runs:
        raise RecordError("no finished training run among these records: nothing to draw.")
    options = pd.DataFrame([record["what"] for record in runs])
    require_same(options, SAME)
    for _, of_recipe in options.groupby([recipe(record["what"]) for record in runs]):
        require_same(of_recipe, SAME_RECIPE)
    return pd.DataFrame([_row(record["what"], record["epochs"][-1]) for record in runs])


def _row(what: dict, last: dict) -> dict:
    return {
        "recipe": recipe(what),
        "workers": what["emulate_workers"] or what["world_size"],
        "seed": what["seed"],
        "test_accuracy": 100 * last["test_accuracy"],
        "train_accuracy": 100 * last["train_accuracy"],
    }
