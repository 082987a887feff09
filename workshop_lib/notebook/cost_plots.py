"""Figures of what communication costs, and of predicted beside measured step times."""

from collections.abc import Iterable

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from workshop_lib.notebook.figures import (
    GREY,
    Style,
    draw_curve,
    draw_legend,
    draw_points,
    handle_of,
    hollow_note,
    in_columns,
    new_figure,
)
from workshop_lib.training.cores import usable_cores

BESIDE = 0.12  # of a doubling of the size, from one curve to the next in `allreduce_times`
WITHIN = 0.1  # of the measured time: the band in `predicted_beside_measured`


def allreduce_times(rows: Iterable[dict], cores: int | None = None) -> Figure:
    """Time (left) and bus bandwidth (right) of allreduces against the size of the message, one curve a way.

    `rows` are those of workshop_lib/comm/benchmark.py, all on one number of ranks. Points are medians, bars
    go from the fastest to the slowest round; hollow points ran more ranks than `cores` (those of this
    machine). Raises ValueError without rows, or for rows of several numbers of ranks.
    """
    frame = pd.DataFrame([row for row in rows if row["way"] != "ping-pong"])
    if frame.empty:
        raise ValueError("no allreduce among these rows: nothing to draw.")
    counts = sorted(frame["ranks"].unique())
    if len(counts) > 1:
        numbers = " and ".join(map(str, counts))
        raise ValueError(f"these rows are of {numbers} ranks; draw one number of ranks at a time.")
    frame["oversubscribed"] = frame["ranks"] > (cores or usable_cores())
    repeats = frame["seconds"].map(len).min()
    star = "*" if frame["oversubscribed"].any() else ""
    caption = f"median of {repeats} rounds, bars from the fastest to the slowest; float32, in place"
    figure = new_figure(f"An allreduce on {counts[0]}{star} ranks", caption)
    time, bandwidth = figure.subplots(1, 2)
    handles, curves = [], list(frame.groupby("way", sort=False))
    for number, (way, curve) in enumerate(curves):
        style = Style.number(number)
        # Beside each other, so that the bars of one curve do not hide those of the next.
        sizes = curve["message_bytes"] * 2 ** (BESIDE * (number - (len(curves) - 1) / 2))
        _draw(time, sizes, *(1e6 * curve[f"{name}_s"] for name in ("median", "min", "max")), curve, style)
        # A slow round is a low bandwidth.
        per_s = curve["bus_bytes_per_s"] * curve["median_s"] / 1e9
        speeds = (per_s / curve[f"{name}_s"] for name in ("median", "max", "min"))
        _draw(bandwidth, sizes, *speeds, curve, style)
        handles.append(handle_of(way, style))
    for axes in (time, bandwidth):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("message (bytes)")
        axes.xaxis.set_major_formatter(_size)
    time.set_ylabel("time (µs)")
    bandwidth.set_ylabel("bus bandwidth (GB/s)")
    notes = hollow_note(frame)
    draw_legend(figure, *in_columns(handles), *([notes] if notes else []))
    return figure


def _draw(axes, sizes, middle, low, high, curve: pd.DataFrame, style: Style) -> None:
    draw_curve(axes, sizes, middle, [middle - low, high - middle], style, curve["oversubscribed"].any())


def _size(nbytes: float, _) -> str:
    """1024 -> "1 Ki"."""
    for unit in ("", " Ki", " Mi"):
        if nbytes < 1024 or unit == " Mi":
            return f"{nbytes:g}{unit}"
        nbytes /= 1024


def predicted_beside_measured(fitted: pd.DataFrame, others: pd.DataFrame, cores: int | None = None) -> Figure:
    """Measured against predicted step times: those that the fit used, and those held out.

    Both are tables of `scaling.fit.predicted`. Bars go from the fastest to the slowest round; on the line
    both times are the same, and in the band they differ by at most a tenth. Hollow points ran more ranks than
    `cores` (those of this machine).
    """
    both = pd.concat([fitted, others])
    both["oversubscribed"] = both["ranks"] > (cores or usable_cores())
    repeats, hollow = int(both["repeats"].min()), bool(both["oversubscribed"].any())
    ranks = " and ".join(map(str, sorted(set(both["ranks"])))) + "*" * hollow
    caption = f"{ranks} ranks; medians of {repeats} rounds, bars from the fastest to the slowest"
    figure = new_figure("Step times, predicted and measured", caption)
    axes, handles = figure.subplots(), []
    for number, (name, table) in enumerate((("used in the fit", fitted), ("held out", others))):
        style = Style.number(number)
        middle = 1e3 * table["measured_s"]
        bars = [middle - 1e3 * table["measured_min_s"], 1e3 * table["measured_max_s"] - middle]
        draw_points(axes, 1e3 * table["predicted_s"], middle, bars, style, hollow)
        handles.append(handle_of(name, style, line=False))
    ends = [0.8e3 * both["predicted_s"].min(), 1.25e3 * both["predicted_s"].max()]
    line = {"color": GREY, "linewidth": 1.5, "linestyle": (0, (1, 1.5)), "zorder": 1}
    axes.loglog(ends, ends, **line)
    axes.fill_between(ends, [end / (1 + WITHIN) for end in ends], [end / (1 - WITHIN) for end in ends],
                      color=GREY, alpha=0.15, linewidth=0)  # fmt: skip
    axes.set(xlabel="predicted time of a step (ms)", ylabel="measured time of a step (ms)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
    same = Line2D([], [], **line, label=f"the same; shaded: within {WITHIN:.0%}")
    draw_legend(figure, handles, [same, *hollow_note(both)])
    return figure
