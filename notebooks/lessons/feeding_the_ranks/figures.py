"""Draws the measurements of 09_feeding_the_ranks: how training scales with its input, and who waits for what."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workshop_lib.notebook import figures, palette
from workshop_lib.words import plural

from lessons.feeding_the_ranks.server import TITLE

SPENT = {
    "until the first batch": figures.STEP_LOOKS["Allreduce"],
    "waiting for input": figures.STEP_LOOKS["waiting"],
    "computing": figures.STEP_LOOKS["computing"],
}
ONCE = {"color": palette.GRAY, "marker": "", "linestyle": (0, (2, 2)), "linewidth": 1.5}


@figures.styled
def scaling(curves: Mapping[str, Sequence[Mapping[str, Any]]], computing_images_per_s: float) -> figures.RecordFigure:
    """Draw images per second (left) and the share of waiting (right) against ranks, from rows of `training.scaling`."""
    caption = f"emulated on DGX H100, ResNet-50, 64 images per rank and step; {TITLE}"
    figure, (rate, waiting) = figures.new_figure("Training, and its input", caption, columns=2)
    every = [row["ranks"] for rows in curves.values() for row in rows]
    counts = sorted(set(every))
    for number, (name, rows) in enumerate(curves.items()):
        ranks = [row["ranks"] for row in rows]
        rate.plot(ranks, [row["images_per_s"] for row in rows], **figures.style(number), label=name)
        waiting.plot(ranks, [100 * row["waiting"] for row in rows], **figures.style(number), label=name)
    rate.plot(counts, [computing_images_per_s * n for n in counts], **ONCE, label="if nobody ever waited")
    for axes in (rate, waiting):
        axes.set(xscale="log", xlabel="ranks")
        figures.ticks_at(axes.xaxis, counts)
    rate.set(yscale="log", ylabel="images/s")
    figures.log_ticks(rate.yaxis)
    waiting.set(ylim=(0, 100), ylabel="time spent waiting for input (%)")
    return figure


@figures.styled
def ways(rows: Sequence[Mapping[str, Any]]) -> figures.RecordFigure:
    """Draw what each way took (left) and how much the storage sent (right), from rows of `storage.measure_ways`."""
    title = f"Getting the rows to {rows[0]['ranks']} ranks"
    figure, (time, size) = figures.new_figure(
        title, f"emulated; {TITLE}", columns=2, size_inches=(12, 4.2), sharey=True
    )
    for at, row in enumerate(rows):
        figures.draw_bar(time, at, 0, row["seconds"], figures.STEP_LOOKS["waiting"], 0.6)
        figures.write_beside(time, row["seconds"], at, f"{row['seconds']:.4f} s")
        figures.draw_bar(size, at, 0, row["nbytes"] / 1e6, figures.STEP_LOOKS["computing"], 0.6)
        figures.write_beside(size, row["nbytes"] / 1e6, at, plural(row["opens"], "open"))
    size.axvline(rows[0]["file_bytes"] / 1e6, **ONCE, zorder=3, label="the file, once")
    time.set(xlabel="time (s)", xlim=(0, 1.3 * max(row["seconds"] for row in rows)))
    size.set(xlabel="sent by the storage (MB)", xlim=(0, 1.3 * max(row["nbytes"] for row in rows) / 1e6))
    for axes in (time, size):
        figures.name_rows(axes, [row["way"] for row in rows])
    size.tick_params(labelleft=False)
    return figure


@figures.styled
def feeding_shares(runs: dict[str, np.ndarray], title: str) -> figures.RecordFigure:
    """Draw how an epoch spends its time, one bar per way of feeding it.

    runs: {way: seconds [repeats, 3]}, with the three parts in SPENT's order. Each bar shows the run whose total is the
    median; its error bar goes from the shortest total to the longest.
    """
    repeats = len(next(iter(runs.values())))
    caption = f"median of {repeats} runs, bars from the fastest to the slowest"
    figure, axes = figures.new_figure(title, caption, size_inches=(12, 2.4 + 0.8 * len(runs)))
    for at, seconds in enumerate(runs.values()):
        totals = seconds.sum(axis=1)
        middle = np.argsort(totals)[(len(totals) - 1) // 2]
        left = 0.0
        for part, (name, look) in zip(seconds[middle], SPENT.items(), strict=True):
            figures.draw_bar(axes, at, left, part, look, 0.6, name)
            left += part
        bars = [[left - totals.min()], [totals.max() - left]]
        axes.errorbar(left, at, xerr=bars, fmt="none", ecolor=palette.INK)
        figures.write_beside(axes, totals.max(), at, f"{left:.2f} s")
    longest = max(seconds.sum(axis=1).max() for seconds in runs.values())
    axes.set(xlabel="time (s)", xlim=(0, 1.12 * longest))
    figures.name_rows(axes, runs)
    return figure
