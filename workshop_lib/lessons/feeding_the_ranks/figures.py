"""Draws the measurements of 09_feeding_the_ranks: which bytes each rank requests, and who waits for them."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workshop_lib.errors import InputError
from workshop_lib.notebook.figures import old as figures
from workshop_lib.training.cores import usable_cores
from workshop_lib.words import plural

MB = 1e6
BYTES = {
    "asked for by the busiest rank": figures.Look(figures.GREEN, ""),
    "asked for by all ranks": figures.Look(figures.PURPLE, "//"),
    "from the storage, when cold": figures.Look(figures.LIGHT_BLUE, ".."),
}
ONCE = {"color": figures.GRAY, "linestyle": (0, (2, 2)), "linewidth": 1.5}
SPENT = {
    "preloading": figures.STEP_LOOKS["Allreduce"],
    "waiting for input": figures.STEP_LOOKS["waiting"],
    "computing": figures.STEP_LOOKS["computing"],
}


def feeding_table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A table with one line per way, from rows of `feeding.measure`: milliseconds, and megabytes moved."""
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(row["way"], {"cold, ms": None, "warm, ms": None})
        line["cold, ms" if row["cold"] else "warm, ms"] = round(1e3 * median(row["seconds"]), 1)
        asked = _asked(row)
        line["rank 0 reads, MB"] = round(asked[0] / MB, 1)
        line["other ranks read, MB"] = " ".join(f"{of / MB:.1f}" for of in asked[1:])
        line["sent, MB"] = round(sum(row["bytes_sent"]) / MB, 1)
        if row["cold"]:
            stored = _stored(row)
            line["from the storage, MB"] = "not known" if stored is None else f"{stored / MB:.1f}"
    return pd.DataFrame(lines).T


def feeding_ways(rows: Iterable[Mapping[str, Any]], cores: int | None = None) -> figures.RecordFigure:
    """Draw the time (left, in ms) and data (right, in MB) of each way, from rows of `feeding.measure`.

    All rows are for one number of ranks. Points are medians, and bars go from the fastest to the slowest round. Points
    are hollow if there were more ranks than `cores`, by default this machine's. Raises InputError without rows.
    """
    rows = list(rows)
    if not rows:
        raise InputError("no way to get data was measured: nothing to draw.")
    names = list(dict.fromkeys(row["way"] for row in rows))
    count = rows[0]["ranks"]
    file_bytes = rows[0]["file_bytes"]
    repeats = len(rows[0]["seconds"])
    hollow = count > (cores or usable_cores())
    caption = (
        f"a file of {file_bytes / MB:.0f} MB; median of {repeats} rounds, bars from the fastest to the "
        "slowest; the slowest rank counts"
    )
    if hollow:
        caption += "; hollow: more ranks than cores"
    figure = figures.new_figure(f"Getting the rows to {plural(count, 'rank')}", caption)
    time, size = figure.subplots(1, 2, sharey=True)
    for number, (cold, beside) in enumerate(((True, -0.13), (False, 0.13))):
        for row in (row for row in rows if row["cold"] == cold):
            ms = 1e3 * np.array(row["seconds"])
            at = names.index(row["way"]) + beside
            bars = figures.spread(np.median(ms), [ms.min()], [ms.max()])
            figures.draw_points(time, np.median(ms), at, bars, figures.Style.number(number), hollow, across=True)
    _draw_bytes(size, [row for row in rows if row["cold"]], names, file_bytes)
    time.set(xscale="log", xlabel="time (ms)")
    figures.name_rows(time, names)
    every_s = [seconds for row in rows for seconds in row["seconds"]]
    figures.log_ticks(time.xaxis, "{x:g}", (1, 2, 5) if max(every_s) < 100 * min(every_s) else (1,))
    size.set(xlabel="data (MB)")
    handles = figures.handles_of(("cold", "warm"), line=False)
    figures.draw_legend(figure, [*handles, figures.entry("the file, once", **ONCE)], figures.patches(BYTES))
    figure.subplots_adjust(left=0.15, wspace=0.08)
    return figure


def _draw_bytes(axes: Axes, rows: list[Mapping[str, Any]], names: list[str], file_bytes: int) -> None:
    for row in rows:
        asked = _asked(row)
        amounts = (max(asked), sum(asked), _stored(row))
        for number, (value, look) in enumerate(zip(amounts, BYTES.values(), strict=True)):
            if value is not None:
                figures.draw_bar(axes, names.index(row["way"]) + 0.26 * (number - 1), 0, value / MB, look, 0.24)
    axes.axvline(file_bytes / MB, **ONCE, zorder=3)


def _asked(row: Mapping[str, Any]) -> list[int]:
    """Bytes that each rank requested, by the operating system's count or, if it has none, by the program's own."""
    return row["asked_bytes"] or row["bytes_read"]


def _stored(row: Mapping[str, Any]) -> float | None:
    known = [value for value in row["storage_bytes"] if value is not None]
    return median(known) if known else None


def feeding_shares(runs: dict[str, np.ndarray], caption: str, first: str = "preloading") -> figures.RecordFigure:
    """Draw how a training run spends its time, one bar per way of feeding it.

    runs: {way: seconds [repeats, 3]}, with the three parts in SPENT's order. first: a different name for the first
    part. Each bar shows the run whose total is the median; its error bar goes from the shortest total to the longest.
    """
    figure = figures.new_figure("A training, and its input", caption)
    axes = figure.subplots()
    for at, seconds in enumerate(runs.values()):
        totals = seconds.sum(axis=1)
        middle = np.argsort(totals)[(len(totals) - 1) // 2]
        left = 0.0
        for part, look in zip(seconds[middle], SPENT.values(), strict=True):
            figures.draw_bar(axes, at, left, part, look, 0.6)
            left += part
        bars = [[left - totals.min()], [totals.max() - left]]
        axes.errorbar(left, at, xerr=bars, fmt="none", ecolor="black", capsize=7, linewidth=1.8)
        beside = {"textcoords": "offset points", "va": "center", "fontsize": figures.FONT_SIZE}
        axes.annotate(f"{left:.2f} s", (totals.max(), at), (8, 0), **beside)
    longest = max(seconds.sum(axis=1).max() for seconds in runs.values())
    axes.set(xlabel="time (s)", xlim=(0, 1.12 * longest))
    figures.name_rows(axes, runs)
    looks = dict(zip([first, *list(SPENT)[1:]], SPENT.values(), strict=True))
    figures.draw_legend(figure, *[[patch] for patch in figures.patches(looks)])
    figure.subplots_adjust(left=0.2)
    return figure
