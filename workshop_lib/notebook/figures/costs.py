"""Figures of what messages and allreduces cost, of predicted beside measured step times, and of ways to feed ranks."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from workshop_lib.errors import InputError
from workshop_lib.notebook import figures
from workshop_lib.training.cores import usable_cores

BESIDE = 0.12  # of a doubling of the size, from one curve to the next in `allreduce_times`
WITHIN = 0.1  # of the measured time: the band in `predicted_beside_measured`
MB = 1e6
BYTES = {
    "asked for by the busiest rank": figures.Look(figures.GREEN, ""),
    "asked for by all ranks": figures.Look(figures.PURPLE, "//"),
    "from the storage, when cold": figures.Look(figures.LIGHT_BLUE, ".."),
}
ONCE = {"color": figures.GREY, "linestyle": (0, (2, 2)), "linewidth": 1.5}
SPENT = {
    "preloading": figures.STEP_LOOKS["Allreduce"],
    "waiting for input": figures.STEP_LOOKS["waiting"],
    "computing": figures.STEP_LOOKS["computing"],
}


def message_times(nbytes: Sequence[int], seconds: np.ndarray, alpha_s: float, beta_s_per_byte: float) -> Figure:
    """Time of one message against its size, beside the line α + β · bytes.

    seconds: [3, sizes], the medians and the 10th and 90th percentiles of each size.
    """
    caption = "points are medians, bars go from the 10th to the 90th percentile"
    figure = figures.new_figure("One message between two ranks", caption)
    axes, (points, line) = figure.subplots(), map(figures.Style.number, range(2))
    median_us, *ends_us = 1e6 * np.asarray(seconds)
    figures.draw_points(axes, nbytes, median_us, figures.spread(median_us, *ends_us), points, hollow=False)
    axes.loglog(nbytes, 1e6 * (alpha_s + beta_s_per_byte * np.asarray(nbytes)), **line.curve)
    axes.set(xlabel="message (bytes)", ylabel="time (µs)")
    model = figures.entry("α + β · bytes", **line.curve)
    figures.draw_legend(figure, [figures.handle_of("measured", points, line=False)], [model])
    return figure


def allreduce_times(rows: Iterable[Mapping[str, Any]], cores: int | None = None) -> Figure:
    """Time (left) and bus bandwidth (right) of allreduces against the size of the message, one curve per algorithm.

    `rows` are those of workshop_lib/comm/benchmark.py, all on one number of ranks. Points are medians, bars
    go from the fastest to the slowest round; hollow points ran more ranks than `cores` (those of this
    machine). Raises InputError without rows, or for rows of several numbers of ranks.
    """
    frame = pd.DataFrame([row for row in rows if row["way"] != "ping-pong"])
    if frame.empty:
        raise InputError("no allreduce among these rows: nothing to draw.")
    counts = sorted(frame["ranks"].unique())
    if len(counts) > 1:
        numbers = " and ".join(map(str, counts))
        raise InputError(f"these rows are of {numbers} ranks; draw one number of ranks at a time.")
    hollow, repeats = bool(counts[0] > (cores or usable_cores())), frame["seconds"].map(len).min()
    caption = f"median of {repeats} rounds, bars from the fastest to the slowest; float32, in place"
    figure, handles = figures.new_figure(f"An allreduce on {counts[0]}{'*' * hollow} ranks", caption), []
    time, bandwidth = figure.subplots(1, 2)
    curves = list(frame.groupby("way", sort=False))
    for number, (way, curve) in enumerate(curves):
        style = figures.Style.number(number)
        # Beside each other, so that the bars of one curve do not hide those of the next.
        sizes = curve["message_bytes"] * 2 ** (BESIDE * (number - (len(curves) - 1) / 2))
        median_s, min_s, max_s = (curve[f"{name}_s"] for name in ("median", "min", "max"))
        bus_gb = curve["bus_bytes_per_s"] * median_s / 1e9
        figures.draw_curve(time, sizes, (1e6 * median_s, 1e6 * min_s, 1e6 * max_s), style, hollow)
        figures.draw_curve(bandwidth, sizes, (bus_gb / median_s, bus_gb / max_s, bus_gb / min_s), style, hollow)
        handles.append(figures.handle_of(way, style))
    for axes, label in ((time, "time (µs)"), (bandwidth, "bus bandwidth (GB/s)")):
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel="message (bytes)", ylabel=label)
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=7))  # more would touch each other
        axes.xaxis.set_major_formatter(_size)
    figures.draw_legend(figure, handles, figures.hollow_note(hollow))
    return figure


def _size(nbytes: float, _) -> str:
    """1024 -> "1 Ki"."""
    for unit in ("", " Ki"):
        if nbytes < 1024:
            return f"{nbytes:g}{unit}"
        nbytes /= 1024
    return f"{nbytes:g} Mi"


def predicted_beside_measured(fitted: pd.DataFrame, others: pd.DataFrame, cores: int | None = None) -> Figure:
    """Measured against predicted step times: those that the fit used, and those held out.

    Both are tables of `scaling.fit.predicted`. Bars go from the fastest to the slowest round; on the line
    both times are the same, and in the band they differ by at most a tenth. Hollow points ran more ranks than
    `cores` (those of this machine).
    """
    both = pd.concat([fitted, others])
    repeats, hollow = int(both["repeats"].min()), bool(both["ranks"].max() > (cores or usable_cores()))
    ranks = " and ".join(map(str, sorted(set(both["ranks"])))) + "*" * hollow
    caption = f"{ranks} ranks; medians of {repeats} rounds, bars from the fastest to the slowest"
    figure = figures.new_figure("Step times, predicted and measured", caption)
    axes, handles = figure.subplots(), []
    for number, (name, table) in enumerate((("used in the fit", fitted), ("held out", others))):
        style = figures.Style.number(number)
        times = [1e3 * table[f"measured{end}_s"] for end in ("", "_min", "_max")]
        figures.draw_points(axes, 1e3 * table["predicted_s"], times[0], figures.spread(*times), style, hollow)
        handles.append(figures.handle_of(name, style, line=False))
    ends = [0.8e3 * both["predicted_s"].min(), 1.25e3 * both["predicted_s"].max()]
    axes.loglog(ends, ends, **figures.PERFECT)
    low, high = ([end / (1 + sign * WITHIN) for end in ends] for sign in (1, -1))
    axes.fill_between(ends, low, high, color=figures.GREY, alpha=0.15, linewidth=0)
    axes.set(xlabel="predicted time of a step (ms)", ylabel="measured time of a step (ms)")
    for axis in (axes.xaxis, axes.yaxis):
        figures.log_ticks(axis, "{x:g}")
    same = figures.entry(f"the same; shaded: within {WITHIN:.0%}", **figures.PERFECT)
    figures.draw_legend(figure, handles, [same, *figures.hollow_note(hollow)])
    return figure


def feeding_table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One line per way from the rows of `comm.feeding.measure`: milliseconds, and megabytes moved."""
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
    """Seconds (left) and bytes (right) of the ways in rows of `comm.feeding.measure`, on one number of ranks.

    Points are medians, bars go from the fastest to the slowest round; hollow points ran more ranks than
    `cores` (those of this machine). Raises InputError without rows.
    """
    rows = list(rows)
    if not rows:
        raise InputError("no way to get data was measured: nothing to draw.")
    names = list(dict.fromkeys(row["way"] for row in rows))
    count, file_bytes, repeats = rows[0]["ranks"], rows[0]["file_bytes"], len(rows[0]["seconds"])
    hollow = count > (cores or usable_cores())
    caption = (
        f"a file of {file_bytes / MB:.0f} MB; median of {repeats} rounds, bars from the fastest to the "
        "slowest; the slowest rank counts" + "; hollow: more ranks than cores" * hollow
    )
    figure = figures.new_figure(f"Getting the rows to {count} rank{'s' * (count > 1)}", caption)
    time, size = figure.subplots(1, 2, sharey=True)
    for number, (cold, beside) in enumerate(((True, -0.13), (False, 0.13))):
        for row in (row for row in rows if row["cold"] == cold):
            ms, at = 1e3 * np.array(row["seconds"]), names.index(row["way"]) + beside
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
    """Bytes that each rank asked the operating system for; by the program's count where the system has none."""
    return row["asked_bytes"] or row["bytes_read"]


def _stored(row: Mapping[str, Any]) -> float | None:
    known = [value for value in row["storage_bytes"] if value is not None]
    return median(known) if known else None


def feeding_shares(runs: dict[str, np.ndarray], caption: str, first: str = "preloading") -> figures.RecordFigure:
    """What a training is spent on, a bar per way of feeding it: {way: seconds [repeats, 3], in SPENT's order}; `first`
    names what comes first instead.

    The bar is the run whose total is the median, its error bar goes from the shortest total to the longest.
    """
    figure = figures.new_figure("A training, and its input", caption)
    axes = figure.subplots()
    for at, seconds in enumerate(runs.values()):
        totals = seconds.sum(axis=1)
        middle, left = np.argsort(totals)[(len(totals) - 1) // 2], 0.0
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
