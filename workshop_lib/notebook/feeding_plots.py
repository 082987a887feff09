"""Figures and table of 09: what it costs to get data to the ranks, and what of a training is spent on it."""

from collections.abc import Iterable
from statistics import median

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from workshop_lib.notebook import bars
from workshop_lib.notebook.figures import (
    FONT_SIZE,
    GREY,
    RecordFigure,
    Style,
    draw_legend,
    draw_points,
    handle_of,
    new_figure,
)
from workshop_lib.training.cores import usable_cores

MB = 1e6
BYTES = ("asked for by the busiest rank", "asked for by all ranks", "from the storage, when cold")
HATCHES = ("", "//", "..")
SPENT = {
    "preloading": bars.LOOKS["Allreduce"],
    "waiting for input": bars.LOOKS["waiting"],
    "computing": bars.LOOKS["computing"],
}


def table(rows: Iterable[dict]) -> pd.DataFrame:
    """One line a way from the rows of `comm.feeding.measure`: milliseconds, and megabytes moved."""
    lines = {}
    for row in rows:
        line = lines.setdefault(row["way"], {"cold, ms": None, "warm, ms": None})
        line["cold, ms" if row["cold"] else "warm, ms"] = round(1e3 * median(row["seconds"]), 1)
        asked = _asked(row)
        line["rank 0 reads, MB"] = round(asked[0] / MB, 1)
        line["other ranks read, MB"] = " ".join(f"{of / MB:.1f}" for of in asked[1:])
        line["sent, MB"] = round(sum(row["bytes_sent"]) / MB, 1)
        if row["cold"]:
            stored = _stored(row)
            line["from the storage, MB"] = "not told" if stored is None else f"{stored / MB:.1f}"
    return pd.DataFrame(lines).T


def ways(rows: Iterable[dict], cores: int | None = None) -> RecordFigure:
    """Seconds (left) and bytes (right) of the ways in rows of `comm.feeding.measure`, on one number of ranks.

    Points are medians, bars go from the fastest to the slowest round; hollow points ran more ranks than
    `cores` (those of this machine). Raises ValueError without rows.
    """
    rows = list(rows)
    if not rows:
        raise ValueError("no way to get data was measured: nothing to draw.")
    names = list(dict.fromkeys(row["way"] for row in rows))
    count, file_bytes, repeats = rows[0]["ranks"], rows[0]["file_bytes"], len(rows[0]["seconds"])
    hollow = count > (cores or usable_cores())
    caption = (
        f"a file of {file_bytes / MB:.0f} MB; median of {repeats} rounds, bars from the fastest to the "
        "slowest; the slowest rank counts" + "; hollow: more ranks than cores" * hollow
    )
    figure = new_figure(f"Getting the rows to {count} rank{'s' * (count > 1)}", caption)
    time, size = figure.subplots(1, 2, sharey=True)
    for number, (cold, beside) in enumerate(((True, -0.13), (False, 0.13))):
        for row in (row for row in rows if row["cold"] == cold):
            seconds = 1e3 * np.array(row["seconds"])
            at, middle = names.index(row["way"]) + beside, np.median(seconds)
            time.errorbar(middle, at, xerr=[[middle - seconds.min()], [seconds.max() - middle]], capsize=6,
                          color=Style.number(number).colour, linewidth=2, zorder=2)  # fmt: skip
            draw_points(time, [middle], [at], None, Style.number(number), hollow)
    _draw_bytes(size, [row for row in rows if row["cold"]], names, file_bytes)
    time.set(xscale="log", xlabel="time (ms)", yticks=range(len(names)))
    time.set_ylim(len(names) - 0.5, -0.5)
    time.set_yticklabels(names)
    every_s = [seconds for row in rows for seconds in row["seconds"]]
    time.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(every_s) < 100 * min(every_s) else (1,)))
    time.xaxis.set_minor_locator(NullLocator())
    time.xaxis.set_major_formatter("{x:g}")
    size.set(xlabel="data (MB)")
    handles = [handle_of(name, Style.number(i), line=False) for i, name in enumerate(("cold", "warm"))]
    patches = [Patch(fc=Style.number(i + 2).colour, hatch=HATCHES[i], ec="white", label=name)
               for i, name in enumerate(BYTES)]  # fmt: skip
    line = Line2D([], [], color=GREY, linestyle=(0, (2, 2)), linewidth=1.5, label="the file, once")
    draw_legend(figure, [*handles, line], patches)
    figure.subplots_adjust(left=0.15, wspace=0.08)
    return figure


def _draw_bytes(axes, rows: list[dict], names: list[str], file_bytes: int) -> None:
    for row in rows:
        asked = _asked(row)
        for number, value in enumerate((max(asked), sum(asked), _stored(row))):
            if value is not None:
                axes.barh(
                    names.index(row["way"]) + 0.26 * (number - 1), value / MB, 0.24, edgecolor="white",
                    color=Style.number(number + 2).colour, hatch=HATCHES[number], linewidth=0,
                )  # fmt: skip
    axes.axvline(file_bytes / MB, color=GREY, linestyle=(0, (2, 2)), linewidth=1.5, zorder=3)


def _asked(row: dict) -> list[int]:
    """Bytes that each rank asked the operating system for; by the program's count where it does not tell."""
    return row["asked_bytes"] or row["bytes_read"]


def _stored(row: dict) -> float | None:
    known = [value for value in row["storage_bytes"] if value is not None]
    return median(known) if known else None


def fed(runs: dict[str, np.ndarray], caption: str) -> RecordFigure:
    """What a training is spent on, a bar a way of feeding it: {way: seconds [repeats, 3], in SPENT's order}.

    The bar is the run whose total is the median, its error bar goes from the shortest total to the longest.
    """
    figure = new_figure("A training, and its input", caption)
    axes = figure.subplots()
    for at, seconds in enumerate(runs.values()):
        totals = seconds.sum(axis=1)
        middle, left = np.argsort(totals)[(len(totals) - 1) // 2], 0.0
        for part, (colour, hatch) in zip(seconds[middle], SPENT.values(), strict=True):
            axes.barh(at, part, 0.6, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
            left += part
        bars = [[left - totals.min()], [totals.max() - left]]
        axes.errorbar(left, at, xerr=bars, fmt="none", ecolor="black", capsize=7, linewidth=1.8)
        axes.annotate(f"{left:.2f} s", (totals.max(), at), (8, 0), textcoords="offset points", va="center",
                      fontsize=FONT_SIZE)  # fmt: skip
    axes.set(xlabel="time (s)", yticks=range(len(runs)), ylim=(len(runs) - 0.5, -0.5))
    axes.set_yticklabels(list(runs))
    axes.set_xlim(0, 1.12 * max(seconds.sum(axis=1).max() for seconds in runs.values()))
    draw_legend(figure, *[[Patch(fc=c, hatch=h, ec="white", label=name)] for name, (c, h) in SPENT.items()])
    figure.subplots_adjust(left=0.2)
    return figure
