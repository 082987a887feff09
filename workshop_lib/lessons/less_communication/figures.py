"""Figures of 07c_less_communication: how stale updates are, and test accuracy against bytes per sample."""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, PercentFormatter

from workshop_lib.lessons.less_communication import trainings as less
from workshop_lib.notebook.figures import old as figures
from workshop_lib.results.curves import require_same
from workshop_lib.results.records import RecordError


def staleness(histograms: Mapping[str, Mapping[int, int]], caption: str) -> figures.RecordFigure:
    """Draw the share of updates at each staleness, a panel per mode.

    histograms: {mode: {staleness: number of updates}}.
    """
    figure = figures.new_figure("How stale each update was", caption)
    panels = np.atleast_1d(figure.subplots(1, len(histograms), sharey=True))
    most = max(max(counts) for counts in histograms.values())
    for number, (axes, (mode, counts)) in enumerate(zip(panels, histograms.items(), strict=True)):
        total = sum(counts.values())
        axes.bar(list(counts), [n / total for n in counts.values()], 0.8, color=figures.Style.number(number).color)
        axes.set_title(mode, fontsize=12)
        axes.set(xlim=(-0.6, most + 0.6), xlabel="staleness (updates)", ylim=(0, 1.02))
        axes.xaxis.set_minor_locator(NullLocator())
    panels[0].set_ylabel("share of updates")
    panels[0].yaxis.set_major_formatter(PercentFormatter(1))
    figures.draw_legend(figure, [figures.entry("0: computed with the newest weights", linestyle="")])
    figure.subplots_adjust(top=0.8)
    return figure


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
    figure = figures.new_figure("What does a byte buy?", caption)
    axes = figure.subplots()
    handles = []
    for number, ((way, lr, momentum), of_way) in enumerate(runs.groupby(["way", "lr", "momentum"], sort=False)):
        reached = 100 * of_way["test_accuracy"]
        style = figures.Style.number(number)
        bars = figures.spread(*(np.array([value]) for value in (reached.median(), reached.min(), reached.max())))
        figures.draw_points(axes, of_way["bytes_per_sample"].iloc[:1], [reached.median()], bars, style, hollow=False)
        name = f"{way}, momentum {momentum:g}" if momentum else way
        handles.append(figures.handle_of(name if lr == first.lr else f"{name}, rate {lr:g}", style, line=False))
    axes.set(xlabel="bytes per sample that a rank sends", ylabel="test accuracy (%)", xscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    figures.draw_legend(figure, handles)
    return figure
