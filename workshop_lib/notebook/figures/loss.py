"""The losses in the metrics.jsonl that scripts/trainer.py writes: `workshop plot` draws them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from workshop_lib.notebook import figures


def is_metrics(path: str | os.PathLike) -> bool:
    """Whether the first line of a file is a step of the trainer. Other files are for `results.records` to read."""
    try:
        with open(path, encoding="utf-8") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and {"step", "loss"} <= first.keys()


@figures.styled
def loss_curve(paths: Sequence[str | os.PathLike]) -> figures.RecordFigure:
    """The loss of each logged step as a line, and held-out losses as points. A run is named after its folder."""
    figure, axes = figures.new_figure("Loss of each logged step", size_inches=(9, 5.5))
    for number, path in enumerate(paths):
        steps = pd.read_json(path, lines=True)
        name = Path(path).resolve().parent.name
        look = figures.style(number)
        axes.plot(steps["step"], steps["loss"], color=look["color"], label=name)
        if "held_out_loss" in steps:
            label = f"{name}, held out"
            axes.plot(steps["step"], steps["held_out_loss"], color=look["color"], marker="o", linestyle="", label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    return figure
