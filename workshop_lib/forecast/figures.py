"""Draws forecasts for more devices and beside published runs, and measured times, for 08c_forecasting and 12."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, PercentFormatter

from workshop_lib.forecast import published
from workshop_lib.forecast.forecast import ForecastPoint, outgrows_learning, takes_over
from workshop_lib.forecast.report import UNITS_S, answer
from workshop_lib.machine.cores import usable_cores
from workshop_lib.notebook import figures, palette


@figures.styled
def draw_forecast(points: Sequence[ForecastPoint], conditions: str = "") -> figures.RecordFigure:
    """Draw the efficiency (left), and the time to the model's target or, without a target, the throughput (right).

    The title is the forecast's answer in words, with `conditions` below it.
    """
    # Low enough for a notebook to show the legend on one screen with the controls above the figure.
    size = (12, 5.6)
    figure, (left, right) = figures.new_figure(answer(points), conditions, columns=2, size_inches=size)
    table = pd.DataFrame(points).set_index("devices")
    _draw_efficiency(left, table, learning=bool(points[0].learning))
    _draw_outcome(right, table)
    places = {
        "communication takes longer than computing": (takes_over(points), (0, (1, 1))),
        "the global batch is above the critical one": (outgrows_learning(points), (0, (7, 3))),
    }
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("devices")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        for name, (devices, dash) in places.items():
            if devices:
                axes.axvline(devices, color=palette.INK, linestyle=dash, linewidth=1.8, label=name)
    return figure


def _draw_efficiency(axes: Axes, table: pd.DataFrame, learning: bool) -> None:
    axes.plot(table["efficiency"], label="speed: forecast")
    work = table["efficiency"] * table["step_s"]
    band = {"color": palette.BLUE, "alpha": 0.22, "linewidth": 0, "label": "range: has nine of ten fitted points"}
    axes.fill_between(table.index, work / table["most_s"], work / table["least_s"], **band)
    if learning:
        useful = table["learning"].fillna(0.0)
        axes.plot(useful, label="learning: samples needed, tiny batch / this batch")
        axes.plot(useful * table["efficiency"], label="both: what a device contributes")
    axes.set(ylim=(0, 1.08), ylabel="efficiency")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _draw_outcome(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the time to the target or, without a target, the throughput, next to perfect scaling of the first point."""
    growth = table.index / table.index[0]
    if first_s := table["time_to_target_s"].iloc[0]:
        large_enough = (unit for unit in UNITS_S if first_s >= 10 * UNITS_S[unit])
        unit = max(large_enough, key=UNITS_S.__getitem__, default="s")
        values = table["time_to_target_s"] / UNITS_S[unit]
        axes.plot(values, **figures.style(2))  # what both speed and learning make of it
        axes.set_ylabel(f"time to the target ({unit})")
        growth = 1 / growth
    else:
        values = table["samples_per_s"]
        axes.plot(values, **figures.style(0))
        axes.set_ylabel("samples/s")
    perfect = figures.PERFECT | {"linewidth": 2}
    axes.plot(table.index, values.iloc[0] * growth, **perfect, label="perfect scaling of the first point")
    axes.set_yscale("log")
    figures.log_ticks(axes.yaxis, "{x:,.10g}", subs=(1,))


@figures.styled
def beside_published(rows: pd.DataFrame) -> figures.RecordFigure:
    """Draw published against forecast values, with the range of each forecast as its bar. On the line, both are equal.

    rows: from `published.beside_forecast`, of which those that the lateness was fitted to and those held out are drawn,
    or from `published.meshes_beside_forecast`, drawn by table.
    """
    of_meshes = "mesh" in rows
    what = "MFU" if of_meshes else "efficiency"
    groups = {"used in the fit": rows[rows["table"].isin(published.FITTED)]}
    groups["held out"] = judged = rows[rows["table"].isin(published.HELD_OUT)]
    error = f"Held out: {judged['difference_points'].abs().mean():.1f} percentage points off in the mean"
    caption = "bars: the range of the forecast, whose form was chosen on the held-out tables"
    if of_meshes:
        groups, judged = {str(name): of_table for name, of_table in rows.groupby("table", sort=False)}, rows
        error = f"Runs on meshes: {rows['error'].abs().median():.0%} off in the median"
        worst = rows.loc[rows["error"].abs().idxmax()]
        caption = f"bars: the range; worst: {worst['table']} on {worst['devices']:,} GPUs, {worst['error']:+.0%}"
    title = f"{error}, {int(judged['inside'].sum())} of {len(judged)} in the range"
    figure, axes = figures.new_figure(title, caption)
    for name, table in groups.items():
        values = [100 * table[column] for column in ("forecast", "low", "high")]
        look = {"linestyle": "", "elinewidth": 1, "label": name}
        figures.draw_points(axes, 100 * table["published"], values, across=True, **look)
    axes.plot([0, 100], [0, 100], **figures.PERFECT, label="forecast = published")
    limits = {"xlim": (10, 60), "ylim": (5, 60)} if of_meshes else {"xlim": (15, 104), "ylim": (40, 104)}
    axes.set(**limits, xlabel=f"forecast {what} (%)", ylabel=f"published {what} (%)")
    return figure


BESIDE = 0.12  # sideways shift between the curves of `allreduce_times`, as a fraction of a doubling of the size
WITHIN = 0.1  # half the width of the band in `predicted_beside_measured`, as a fraction of the measured time


@figures.styled
def allreduce_times(rows: Iterable[Mapping[str, Any]]) -> figures.RecordFigure:
    """Draw time (left) and bus bandwidth (right) of allreduces against the message size, with one curve per algorithm.

    `rows` come from benchmark.py, all for one number of ranks. Points are medians, and bars go from the fastest to the
    slowest round. Points are hollow if there were more ranks than this machine has cores.
    """
    frame = pd.DataFrame([row for row in rows if row["way"] != "ping-pong"])
    ranks = frame["ranks"].iloc[0]
    hollow = bool(ranks > usable_cores())
    repeats = frame["seconds"].map(len).min()
    caption = f"median of {repeats} rounds, bars from the fastest to the slowest; float32, in place"
    title = f"An allreduce on {ranks}{'*' if hollow else ''} ranks"
    figure, (time, bandwidth) = figures.new_figure(title, caption, columns=2)
    curves = list(frame.groupby("way", sort=False))
    for number, (way, curve) in enumerate(curves):
        # The curves are shifted sideways, so that the bars of one do not hide those of the next.
        sizes = curve["message_bytes"] * 2 ** (BESIDE * (number - (len(curves) - 1) / 2))
        median_s, min_s, max_s = (curve[f"{name}_s"] for name in ("median", "min", "max"))
        bus_gb = curve["bus_bytes_per_s"] * median_s / 1e9
        figures.draw_points(time, sizes, (1e6 * median_s, 1e6 * min_s, 1e6 * max_s), hollow, label=way)
        figures.draw_points(bandwidth, sizes, (bus_gb / median_s, bus_gb / max_s, bus_gb / min_s), hollow)
    for axes, label in ((time, "time (µs)"), (bandwidth, "bus bandwidth (GB/s)")):
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel="message (bytes)", ylabel=label)
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=7))  # more labels would touch each other
        axes.xaxis.set_major_formatter(_size)
    return figure


def _size(nbytes: float, _) -> str:
    """The label of a tick at this number of bytes: 1024 -> "1 Ki"."""
    for unit in ("", " Ki"):
        if nbytes < 1024:
            return f"{nbytes:g}{unit}"
        nbytes /= 1024
    return f"{nbytes:g} Mi"


@figures.styled
def predicted_beside_measured(fitted: pd.DataFrame, others: pd.DataFrame) -> figures.RecordFigure:
    """Draw measured against predicted step times: those that the fit used, and those held out.

    Both tables come from `fit.predicted`. Bars go from the fastest to the slowest round. On the line, both times are
    the same, and in the band they differ by at most a tenth. Points are hollow if there were more ranks than
    this machine has cores.
    """
    both = pd.concat([fitted, others])
    repeats = int(both["repeats"].min())
    hollow = bool(both["ranks"].max() > usable_cores())
    ranks = " and ".join(map(str, sorted(set(both["ranks"])))) + ("*" if hollow else "")
    caption = f"{ranks} ranks; medians of {repeats} rounds, bars from the fastest to the slowest"
    figure, axes = figures.new_figure("Step times, predicted and measured", caption)
    for name, table in (("used in the fit", fitted), ("held out", others)):
        times = [1e3 * table[f"measured{end}_s"] for end in ("", "_min", "_max")]
        figures.draw_points(axes, 1e3 * table["predicted_s"], times, hollow, linestyle="", label=name)
    ends = [0.8e3 * both["predicted_s"].min(), 1.25e3 * both["predicted_s"].max()]
    axes.plot(ends, ends, **figures.PERFECT, label="measured = predicted")
    low, high = ([end / (1 + sign * WITHIN) for end in ends] for sign in (1, -1))
    axes.fill_between(ends, low, high, color=palette.GRAY, alpha=0.15, linewidth=0, label=f"within {WITHIN:.0%}")
    axes.set(xlabel="predicted time of a step (ms)", ylabel="measured time of a step (ms)", xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        figures.log_ticks(axis, "{x:g}")
    return figure
