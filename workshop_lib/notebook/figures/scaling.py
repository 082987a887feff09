"""Figures drawn from run records: strong and weak scaling.

Up to MOST_CURVES backends are curves in one plot. If there are more, each becomes a row, in which color and marker
stand for the number of ranks.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from workshop_lib.errors import InputError
from workshop_lib.notebook import figures
from workshop_lib.results import records as record_files
from workshop_lib.results.curves import strong_scaling, to_frame, weak_scaling

MOST_CURVES = 5
EFFICIENCY = ["efficiency", "efficiency_min", "efficiency_max"]
PERFECT_TICK = {"color": "black", "marker": "|", "linestyle": "", "markersize": 18, "markeredgewidth": 2, "zorder": 4}
CROSS = {"color": figures.GRAY, "marker": "x", "linestyle": "", "markersize": 7}


class Measure(NamedTuple):
    """The quantity that is drawn against ranks, beside the efficiency."""

    column: str
    first_epoch: str
    label: str
    more_is_better: bool


THROUGHPUT = Measure("samples_per_s", "first_epoch_samples_per_s", "throughput (samples/s)", True)
EPOCH_TIME = Measure("epoch_s", "first_epoch_s", "time of an epoch (s)", False)


class Curve(NamedTuple):
    """One backend with one batch size, measured on several numbers of ranks."""

    name: str
    style: figures.Style
    points: pd.DataFrame  # one row per world_size


def scaling_curve(records: Iterable[dict], same: str = "batch_size") -> Figure:
    """Measured strong scaling: samples/s (left) and parallel efficiency in % (right).

    There is one curve (or row) per backend and value of `same`, which is "batch_size" (per rank) or "global_batch".
    It shows the median over the repeats, without their first epochs, and bars from the slowest to the fastest
    repeat. Hollow points had more ranks than cores. Small crosses are first epochs, which include start-up.

    Raises RecordError if a curve has no 1-rank run, or if machines, data or settings are mixed.
    """
    frame = to_frame(records)
    return _against_ranks(f"Strong scaling on {data_name(frame)}", frame, strong_scaling(frame, same), same, THROUGHPUT)


def weak_scaling_curve(records: Iterable[dict], same: str = "batch_size") -> Figure:
    """Measured weak scaling: seconds per epoch (left) and weak efficiency in % (right).

    The samples per epoch grow with the ranks. Points, bars and crosses mean the same as in `scaling_curve`.

    Raises RecordError if a curve has no 1-rank run, or if the number of samples per rank is not the same in all runs.
    """
    frame = to_frame(records)
    points = weak_scaling(frame, same)
    title = f"Weak scaling on {data_name(frame)}: {frame['samples_per_rank'].iloc[0]:,.0f} samples per rank"
    return _against_ranks(title, frame, points, same, EPOCH_TIME)


def serial_part(fraction: float, most: int = 1024) -> Figure:
    """A figure of the speed-ups on 1 to `most` ranks that a serial part allows.

    `fraction` is the serial share of the work in Amdahl's law (1967), and of the time on N ranks in Gustafson's
    (1988). Raises InputError unless it is from 0 to 1.
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"the serial fraction is {fraction!r}: give a number from 0 to 1")
    n = 2.0 ** np.arange(most.bit_length())
    laws = {
        "ideal": n,
        "Gustafson, weak scaling": n - (n - 1) * fraction,
        "Amdahl, strong scaling": 1 / (fraction + (1 - fraction) / n),
    }
    text = f"serial part {fraction:.1%}: of the work (Amdahl), of the time on N ranks (Gustafson)"
    figure = figures.new_figure("What a serial part allows", text)
    handles = []
    axes = figure.subplots()
    for number, (name, speedups) in enumerate(laws.items()):
        style = figures.Style.number(number)
        handles.append(figures.handle_of(name, style))
        axes.loglog(n, speedups, base=2, marker=style.marker, **style.curve)
    axes.set(xlabel="ranks", ylabel="speed-up")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    figures.draw_legend(figure, *[[handle] for handle in handles])
    return figure


def data_name(frame: pd.DataFrame) -> str:
    """The name of the data set, for a title: MNIST, or the folder that was given instead."""
    return " and ".join(sorted({Path(folder).name for folder in frame["data_dir"]}))


def caption(frame: pd.DataFrame) -> str:
    """Machine, threads, binding, batch and repeats of the runs in `frame`, as one sentence."""

    def values(name: str) -> str:
        return " and ".join(map(str, sorted(frame[name].dropna().unique()))) or "not recorded"

    batches = "/".join(map(str, sorted(frame["batch_size"].unique())))
    return (
        f"{values('cpu_model')}, {values('cores')} cores, {values('device')}; "
        f"threads per rank: {values('threads_per_rank')}, binding: {values('binding')}; "
        f"batch {batches} per rank; repeats: {int(frame['repeat'].max()) + 1}"
    )


def in_order(names: Iterable[str]) -> list[str]:
    """These names of runs in a fixed order, so that all figures agree."""
    given, known = set(names), record_files.all_names()
    return [name for name in known if name in given] + sorted(given - set(known))


def _curves(points: pd.DataFrame, same: str) -> list[Curve]:
    """The curves in the order of the backends; names mention the batch only if a backend ran with several."""
    order = in_order(points["backend"].unique())
    groups = sorted(points.groupby(["backend", same]), key=lambda pair: (order.index(pair[0][0]), pair[0][1]))
    if len(groups) == len(order):
        return [Curve(backend, figures.Style.of(backend), group) for (backend, _), group in groups]
    word = {"batch_size": "batch {} per rank", "global_batch": "global batch {}"}[same]
    return [
        Curve(f"{backend}, {word.format(batch)}", figures.Style.number(index), group)
        for index, ((backend, batch), group) in enumerate(groups)
    ]


def _against_ranks(title: str, frame: pd.DataFrame, points: pd.DataFrame, same: str, measure: Measure) -> Figure:
    points[EFFICIENCY] *= 100
    curves = _curves(points, same)
    draw = _as_curves if len(curves) <= MOST_CURVES else _as_rows
    return draw(title, caption(frame), points, curves, measure)


def _as_curves(title: str, text: str, points: pd.DataFrame, curves: list[Curve], measure: Measure) -> Figure:
    figure = figures.new_figure(title, text)
    left, efficiency = figure.subplots(1, 2)
    counts, names = zip(*rank_counts(points), strict=True)
    for axes in (left, efficiency):
        if _wide(points):
            axes.set_xscale("log", base=2)
        figures.ticks_at(axes.xaxis, counts, list(names))
        axes.set_xlabel("ranks")
    for index, (_, style, curve) in enumerate(curves):
        at = _beside(curve["world_size"], index - (len(curves) - 1) / 2, points)
        for axes, column in ((left, measure.column), (efficiency, "efficiency")):
            axes.plot(at, curve[column], **style.curve, zorder=2)
            for hollow, chosen in curve.groupby("oversubscribed"):
                figures.draw_points(axes, at[chosen.index], *_with_bars(chosen, column), style, bool(hollow))
        if not curve["first_epoch_only"].any():
            left.plot(at, curve[measure.first_epoch], **CROSS | {"color": style.color})
    notes = [_draw_perfect(left, efficiency, points, measure), *_notes(points)]
    if measure.more_is_better and _wide(points):
        left.set_yscale("log")
        figures.log_ticks(left.yaxis, "{x:,.0f}")
    else:
        left.set_ylim(bottom=0)
        left.yaxis.set_major_formatter("{x:,g}")
    left.set_ylabel(measure.label)
    efficiency.set(ylabel="parallel efficiency (%)", ylim=(0, max(110, 1.08 * points["efficiency_max"].max())))
    figures.draw_legend(figure, [figures.handle_of(curve.name, curve.style) for curve in curves], notes)
    return figure


def _as_rows(title: str, text: str, points: pd.DataFrame, curves: list[Curve], measure: Measure) -> Figure:
    """Draw a row per curve, the best on top: a point per number of ranks, and a tick where perfect scaling from the
    row's own 1-rank run would put it."""
    curves = sorted(curves, key=lambda curve: curve.points[measure.column].iloc[-1], reverse=measure.more_is_better)
    figure = figures.new_figure(title, text, height_inches=2.8 + 0.42 * len(curves))
    left, efficiency = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    counts = sorted(points["world_size"].unique())
    styles = {count: figures.Style.number(index) for index, count in enumerate(counts)}
    step = 0.3 / max(len(counts) - 1, 1)  # points of a row are this far apart, so that bars do not hide each other
    beside = {count: (index - (len(counts) - 1) / 2) * step for index, count in enumerate(counts)}
    for row, (_, _, curve) in enumerate(curves):
        single = curve.loc[curve["world_size"] == 1, measure.column].iloc[0]
        for axes in (left, efficiency):
            axes.axhline(row, color=figures.GRID, linewidth=1, zorder=0)
        for count, point in curve.groupby("world_size"):
            y = [row + beside[count]]
            style = styles[count]
            hollow = bool(point["oversubscribed"].any())
            for axes, column in ((left, measure.column), (efficiency, "efficiency")):
                if axes is left or count > 1:  # a single rank is 100 % by definition
                    middle, bars = _with_bars(point, column)
                    figures.draw_points(axes, middle, y, bars, style, hollow, across=True)
            if not point["first_epoch_only"].any():
                left.plot(point[measure.first_epoch], y, **CROSS | {"color": style.color})
            if count > 1:
                left.plot(single * (count if measure.more_is_better else 1), y, **PERFECT_TICK)
    efficiency.axvline(100, **figures.PERFECT | {"color": "black", "linewidth": 2})
    if measure.more_is_better and _wide(points):
        left.set_xscale("log")
        figures.log_ticks(left.xaxis)
    else:
        left.set_xlim(left=0)
        left.xaxis.set_major_formatter("{x:,g}")
    left.set_xlabel(measure.label)
    figures.name_rows(left, (curve.name for curve in curves))
    efficiency.set(xlabel="parallel efficiency (%)", xlim=(0, max(110, 1.08 * points["efficiency_max"].max())))
    own = "ranks × its own 1-rank run" if measure.more_is_better else "as long as its own 1-rank run"
    tick = figures.entry(f"perfect scaling of the row: {own}", **PERFECT_TICK)
    handles = [
        figures.handle_of(f"{name} rank" if count == 1 else f"{name} ranks", styles[count], line=False)
        for count, name in rank_counts(points)
    ]
    figures.draw_legend(figure, handles, [tick, *_notes(points)])
    figure.subplots_adjust(left=0.155, wspace=0.06)
    for axes in (left, efficiency):
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    return figure


def _with_bars(points: pd.DataFrame, column: str) -> tuple[pd.Series, np.ndarray]:
    """The medians, and the bars from the lowest to the highest repeat; a single repeat has no bar."""
    middle, low, high = (points[f"{column}{end}"] for end in ("", "_min", "_max"))
    return middle, figures.spread(middle, low.where(points["repeats"] > 1), high)


def _wide(points: pd.DataFrame) -> bool:
    """Whether the ranks span a range so wide that the axes are logarithmic."""
    return points["world_size"].max() > 8


def _beside(ranks: pd.Series, place: float, points: pd.DataFrame) -> pd.Series:
    """The ranks, shifted a little so that the bars of one curve do not hide the bars of the next."""
    return ranks * 2 ** (0.08 * place) if _wide(points) else ranks + 0.022 * place * points["world_size"].max()


def rank_counts(points: pd.DataFrame) -> list[tuple[int, str]]:
    """Every measured number of ranks with its name; a star marks more ranks than cores."""
    above = set(points.loc[points["oversubscribed"], "world_size"])
    return [
        (int(count), f"{count}*" if count in above else f"{count}") for count in sorted(points["world_size"].unique())
    ]


def _draw_perfect(left: Axes, efficiency: Axes, points: pd.DataFrame, measure: Measure) -> Line2D:
    """Draw perfect scaling from the fastest 1-rank run; return its legend entry."""
    single = points[points["world_size"] == 1]
    best = single.loc[single["samples_per_s"].idxmax()]
    ends = [1, points["world_size"].max()]
    grows = measure.more_is_better
    left.plot(ends, [best[measure.column] * (end if grows else 1) for end in ends], **figures.PERFECT)
    efficiency.axhline(100, **figures.PERFECT)
    run = f"the fastest 1-rank run ({best['backend']})"
    return figures.entry(f"perfect scaling: {'ranks ×' if grows else 'as long as'} {run}", **figures.PERFECT)


def _notes(points: pd.DataFrame) -> list[Line2D]:
    notes = []
    if not points["first_epoch_only"].all():
        notes.append(figures.entry("first epoch (start-up included)", **CROSS))
    if points["first_epoch_only"].any():
        notes.append(figures.entry("one epoch only: includes start-up", linestyle=""))
    return notes + figures.hollow_note(points["oversubscribed"].any())
