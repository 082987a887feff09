"""Figures of 07c_less_communication: how stale updates are, and test accuracy against bytes per sample."""

from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.ticker import MaxNLocator, PercentFormatter

from workshop_lib.lessons.less_communication import trainings as less
from workshop_lib.notebook import figures, palette
from workshop_lib.results.curves import require_same
from workshop_lib.results.records import RecordError


@figures.styled
def staleness(histograms: Mapping[str, Mapping[int, int]], caption: str) -> figures.RecordFigure:
    """Draw the share of updates at each staleness, a panel per mode.

    histograms: {mode: {staleness: number of updates}}.
    """
    text = f"{caption}; 0: computed with the newest weights"
    figure, panels = figures.panels("How stale each update was", text, histograms, "staleness", "share of updates")
    for axes, counts in zip(panels, histograms.values(), strict=True):
        total = sum(counts.values())
        axes.bar(list(counts), [n / total for n in counts.values()], 0.8, color=palette.BLUE)
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    return figure


@figures.styled
def less_communication(records: Iterable[dict]) -> figures.RecordFigure:
    """Draw test accuracy against bytes per sample, from records: each method's median, lowest and highest seed.

    The same method with a different learning rate or momentum counts as a method of its own. Raises RecordError when
    there are no such records, or when their runs differ in world size, batch size, steps or data.
    """
    runs = pd.DataFrame([record["what"] | record for record in records if record.get("kind") == less.KIND])
    if runs.empty:
        raise RecordError("no record of less communication among these: nothing to draw.")
    require_same(runs, ["world_size", "batch_size", "steps", "data_dir"])
    first = runs.iloc[0]
    caption = f"MNIST, {first.world_size} ranks with batches of {first.batch_size}, {first.steps} steps of SGD, rate "
    caption += f"{first.lr:g} unless noted; median and range of {runs.seed.nunique()} seeds"
    figure, axes = figures.new_figure("What does a byte buy?", caption)
    for (way, lr, momentum), of_way in runs.groupby(["way", "lr", "momentum"], sort=False):
        reached = 100 * of_way["test_accuracy"]
        name = f"{way}, momentum {momentum:g}" if momentum else way
        label = name if lr == first.lr else f"{name}, rate {lr:g}"
        values = reached.median(), reached.min(), reached.max()
        figures.draw_points(axes, of_way["bytes_per_sample"].iloc[0], values, linestyle="", label=label)
    axes.set(xlabel="bytes per sample that a rank sends", ylabel="test accuracy (%)", xscale="log")
    figures.log_ticks(axes.xaxis)
    return figure
