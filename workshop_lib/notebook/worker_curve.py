"""The figure of the large-batch collapse: accuracy against workers, one curve a recipe."""

from collections.abc import Iterable

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from workshop_lib.notebook.figures import GREY, LEVEL, Style, draw_curve, draw_legend, handle_of, in_columns, new_figure
from workshop_lib.scaling.curves import PUBLISHED, accuracies

PANELS = {"train_accuracy": "training accuracy in the last epoch (%)", "test_accuracy": "test accuracy (%)"}


def worker_curve(records: Iterable[dict], published: bool = True) -> Figure:
    """Training and test accuracy in % after the last epoch against workers, which are emulated.

    One curve a recipe: the mean over the seeds, bars from the worst to the best. With `published`, crosses
    for the numbers read off the published figure, which are of training.

    Raises RecordError when runs are mixed that differ in more than the recipe.
    """
    records = list(records)
    rows = accuracies(records)
    what, counts = records[0]["what"], rows.groupby(["recipe", "workers"])["seed"].nunique()
    seeds = f"{counts.min()} to {counts.max()}" if counts.min() < counts.max() else counts.max()
    text = (
        f"{what['network']} network, {what['epochs']} epochs, batch {what['batch_size']} a worker; "
        f"seeds: {seeds}, bars from the worst to the best. Workers are emulated on "
        f"{what['world_size']} rank{'s' * (what['world_size'] > 1)}: the same arithmetic."
    )
    figure = new_figure("Accuracy against workers", text)
    names = rows["recipe"].unique()
    for axes, (column, label) in zip(figure.subplots(1, 2, sharex=True), PANELS.items(), strict=True):
        handles = [
            _draw(axes, rows[rows["recipe"] == name], column, index, len(names)) for index, name in enumerate(names)
        ]
        if published and column == "train_accuracy":
            axes.plot(PUBLISHED.keys(), PUBLISHED.values(), "x", color=GREY, ms=9, mew=2.5, zorder=4)
        workers = sorted({*rows["workers"], *(PUBLISHED if published else [])})
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(workers))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([str(number) for number in workers])
        axes.set_xlabel(f"workers (global batch = {what['batch_size']} × workers)")
        axes.set_ylabel(label)
        axes.set_ylim(0, 103)
        axes.axhline(10, **LEVEL)
    notes = [Line2D([], [], **LEVEL, label="10 %: guessing")]
    if published:
        cross = {"color": GREY, "marker": "x", "linestyle": "", "markersize": 9, "markeredgewidth": 2.5}
        notes.append(Line2D([], [], **cross, label="published, 128 nodes (read off the figure)"))
    draw_legend(figure, *in_columns(handles), notes)
    return figure


def _draw(axes, rows: pd.DataFrame, column: str, index: int, curves: int) -> Line2D:
    """One recipe's curve, a little beside the others, so that the bars stay visible."""
    style = Style.number(index)
    groups = rows.groupby("workers")[column]
    mean = groups.mean()
    at = mean.index * 2 ** (0.06 * (index - (curves - 1) / 2))
    known = groups.count() > 1
    bars = [(mean - groups.min()).where(known), (groups.max() - mean).where(known)]
    draw_curve(axes, at, mean, bars, style)
    return handle_of(rows["recipe"].iloc[0], style)
