"""Figures of 07_large_batch: runs epoch by epoch, the limit of the learning rate, and the clinic."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from workshop_lib.notebook import figures
from workshop_lib.notebook.results.curves import recipe
from workshop_lib.training import GUESS_LOSS

from lessons.large_batch import recipes

LEAST_CURVATURE = 0.1  # below this curvature, the highest stable rate means nothing


@figures.styled
def by_epoch(records: Iterable[dict], workers: int) -> figures.RecordFigure:
    """Draw the test accuracy in % after each epoch of every run with this many workers, one line per seed."""
    runs = [record for record in records if record["what"]["emulate_workers"] == workers]
    names = list(dict.fromkeys(recipe(run["what"]) for run in runs))
    figure, axes = figures.new_figure(f"{workers} workers, epoch by epoch", "each seed is a line")
    for run in runs:
        name = recipe(run["what"])
        accuracies = [100 * epoch["test_accuracy"] for epoch in run["epochs"]]
        look = figures.style(names.index(name)) | {"marker": ""}
        axes.plot(range(1, len(accuracies) + 1), accuracies, **look, label=name)
    axes.axhline(10, **figures.LEVEL, label="10 %: guessing")
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(0, 103))
    return figure


@figures.styled
def clinic(runs: Mapping[str, dict]) -> figures.RecordFigure:
    """Draw the losses after each epoch against steps, one panel per run."""
    titles = [f"{name}: {100 * run['epochs'][-1]['test_accuracy']:.0f} %" for name, run in runs.items()]
    caption = "in the titles: test accuracy at the end"
    columns = -(-len(runs) // 2)
    figure, panels = figures.panels("Losses in the clinic", caption, titles, "steps", "loss", columns)
    kinds = {"train_loss": "training loss", "test_loss": "test loss"}
    for axes, run in zip(panels, runs.values(), strict=True):
        for number, (column, label) in enumerate(kinds.items()):
            losses = [np.nan if epoch[column] is None else epoch[column] for epoch in run["epochs"]]
            axes.plot(recipes.steps(run), losses, **figures.style(number) | {"marker": "."}, label=label)
        axes.axhline(GUESS_LOSS, **figures.LEVEL, label="guessing")
        axes.set_ylim(0, 1.6 * GUESS_LOSS)
    return figure


@figures.styled
def limits(followed: Mapping[str, Sequence[tuple]], highest: Callable[[float], float]) -> figures.RecordFigure:
    """Draw losses (left), and the learning rate and the highest one that its curvature allows (right), by step.

    followed: {name: rows of (step, rate, loss, curvature)}. The run that begins at 1.28 collapses before its curvature
    means anything, so it is left out on the right.
    """
    caption = "right, thick: the highest stable rate, the limit; thin: the rate"
    figure, (left, right) = figures.new_figure("Loss and limit", caption, columns=2)
    for index, name in enumerate(sorted(followed)):
        step, rate, loss, curvature = np.array(followed[name]).T
        look = figures.style(index)
        left.plot(step, loss, **look, label=name)
        if name != "1.28 at once":
            limit = [highest(each) if each > LEAST_CURVATURE else np.nan for each in curvature]
            right.plot(step, limit, **look)
            right.plot(step, rate, **look | {"linewidth": 1, "marker": ""})
    left.axhline(GUESS_LOSS, **figures.LEVEL, label="guessing")
    left.set(xlabel="step", ylabel="loss")
    right.set(xlabel="step", ylabel="learning rate", yscale="log")
    return figure
