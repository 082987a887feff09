"""Figures drawn from run records: strong and weak scaling, a panel per backend; and the laws of a serial part."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from workshop_lib.errors import InputError
from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.results import records as record_files
from workshop_lib.notebook.results.curves import emulated_on, strong_scaling, to_frame, weak_scaling

BATCHES = {"batch_size": "batch {} per rank", "global_batch": "global batch {}"}
CROSS = {"color": palette.GRAY, "marker": "x", "linestyle": "", "markersize": 7}


class Measure(NamedTuple):
    """The quantity that is drawn against ranks."""

    column: str
    first_epoch: str
    label: str
    grows_with_ranks: bool


THROUGHPUT = Measure("samples_per_s", "first_epoch_samples_per_s", "samples/s", True)
EPOCH_TIME = Measure("epoch_s", "first_epoch_s", "time of an epoch (s)", False)


def scaling_curve(records: Iterable[dict], same: str = "batch_size") -> figures.RecordFigure:
    """Measured strong scaling: samples/s against ranks, and the parallel efficiency in % written at each point.

    There is one panel per backend and value of `same`, which is "batch_size" (per rank) or "global_batch". It shows
    the median over the repeats, without their first epochs, and bars from the slowest to the fastest repeat. Hollow
    points had more ranks than cores. Small crosses are first epochs, which include start-up.

    Raises RecordError if a curve has no 1-rank run, or if machines, data or settings are mixed.
    """
    frame = to_frame(records)
    points = strong_scaling(frame, same)
    kept_the_same = " and ".join(BATCHES[same].format(value) for value in sorted(points[same].unique()))
    title = f"Strong scaling on {data_name(frame)}: {kept_the_same}"
    return _against_ranks(title, frame, points, same, THROUGHPUT)


def weak_scaling_curve(records: Iterable[dict]) -> figures.RecordFigure:
    """Measured weak scaling: seconds per epoch against ranks, and the weak efficiency in % written at each point.

    The samples per epoch grow with the ranks. Points, bars and crosses mean the same as in `scaling_curve`.

    Raises RecordError if a curve has no 1-rank run, or if the number of samples per rank is not the same in all runs.
    """
    frame = to_frame(records)
    points = weak_scaling(frame)
    title = f"Weak scaling on {data_name(frame)}: {frame['samples_per_rank'].iloc[0]:,.0f} samples per rank"
    return _against_ranks(title, frame, points, "batch_size", EPOCH_TIME)


@figures.styled
def serial_part(fraction: float) -> figures.RecordFigure:
    """A figure of the speed-ups on 1 to 1024 ranks that a serial part allows.

    `fraction` is the serial share of the work in Amdahl's law (1967), and of the time on N ranks in Gustafson's
    (1988). Raises InputError unless it is from 0 to 1.
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"the serial fraction is {fraction!r}: give a number from 0 to 1")
    n = 2.0 ** np.arange(11)
    text = f"serial part {fraction:.1%}: of the work (Amdahl), of the time on N ranks (Gustafson)"
    figure, axes = figures.new_figure("What a serial part allows", text)
    axes.plot(n, n, label="ideal")
    axes.plot(n, n - (n - 1) * fraction, label="Gustafson, weak scaling")
    axes.plot(n, 1 / (fraction + (1 - fraction) / n), label="Amdahl, strong scaling")
    axes.set(xlabel="ranks", ylabel="speed-up")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    return figure


def data_name(frame: pd.DataFrame) -> str:
    """The name of the data set, for a title: MNIST, or the folder given instead; and where runs were emulated."""
    names = " and ".join(sorted({Path(folder).name for folder in frame["data_dir"]}))
    emulated = emulated_on(frame)
    return f"{names}, {emulated}" if emulated else names


def caption(frame: pd.DataFrame) -> str:
    """Machine, threads, binding, batch and repeats of the runs in `frame`, as one sentence."""

    def values(name: str) -> str:
        return " and ".join(map(str, sorted(frame[name].dropna().unique()))) or "not recorded"

    batches = "/".join(map(str, sorted(frame["batch_size"].unique())))
    if emulated := emulated_on(frame):
        repeats = int(frame["repeat"].max()) + 1
        return f"All times are {emulated}, and none was measured; batch {batches} per rank; repeats: {repeats}"
    return (
        f"{values('cpu_model')}, {values('cores')}, {values('device')}; "
        f"threads per rank: {values('threads_per_rank')}, binding: {values('binding')}; "
        f"batch {batches} per rank; repeats: {int(frame['repeat'].max()) + 1}"
    )


def in_order(names: Iterable[str]) -> list[str]:
    """These names of runs in a fixed order, so that all figures agree."""
    given, known = set(names), record_files.all_names()
    return [name for name in known if name in given] + sorted(given - set(known))


def rank_counts(points: pd.DataFrame) -> dict[int, str]:
    """Every measured number of ranks with its name; a star marks more ranks than cores."""
    above = set(points.loc[points["oversubscribed"], "world_size"])
    return {
        int(count): f"{count}*" if count in above else f"{count}" for count in sorted(points["world_size"].unique())
    }


@figures.styled
def _against_ranks(
    title: str, frame: pd.DataFrame, points: pd.DataFrame, same: str, measure: Measure
) -> figures.RecordFigure:
    names = in_order(points["backend"].unique())
    curves = sorted(points.groupby(["backend", same]), key=lambda pair: (names.index(pair[0][0]), pair[0][1]))
    titles = [name for (name, _), _ in curves]
    if len(curves) > len(names):
        titles = [f"{name}\n{BATCHES[same].format(value)}" for (name, value), _ in curves]
    text = f"{caption(frame)}. Percentages: parallel efficiency."
    emulated = bool(emulated_on(frame))
    across = "emulated devices" if emulated else "ranks"
    figure, panels = figures.panels(title, text, titles, across, measure.label)
    counts = rank_counts(points)
    for axes, (own, curve) in zip(panels, curves, strict=True):
        for key, other in curves:
            if key != own:
                axes.plot(other["world_size"], other[measure.column], **figures.OTHERS, label="the other backends")
        _draw_curve(axes, curve, measure, figures.style_of(own[0]) | {"linestyle": "-"})
        if not emulated:
            _draw_first_epochs(axes, curve, measure)
        axes.set_xscale("log", base=2)
        axes.margins(x=0.28, y=0.12)
        figures.ticks_at(axes.xaxis, counts, list(counts.values()))
        if measure.grows_with_ranks:
            axes.set_yscale("log")
            figures.log_ticks(axes.yaxis, "{x:,.0f}")
        else:
            axes.set_ylim(bottom=0)
    return figure


def _draw_curve(axes, curve: pd.DataFrame, measure: Measure, look: dict) -> None:
    """Draw a backend's points with their efficiencies, and perfect scaling from its own 1-rank run."""
    ranks = curve["world_size"]
    several = curve["repeats"] > 1
    middle, low, high = (curve[f"{measure.column}{end}"] for end in ("", "_min", "_max"))
    figures.draw_points(axes, ranks, (middle, low.where(several), high), hollow=curve["oversubscribed"], **look)
    for count, y, share in zip(ranks, middle, curve["efficiency"], strict=True):
        if count > 1:
            beside = (5, -16) if measure.grows_with_ranks else (5, 8)  # away from the line of perfect scaling
            axes.annotate(f"{share:.0%}", (count, y), beside, textcoords="offset points", fontsize=figures.SMALL + 1)
    single = middle[ranks == 1].iloc[0]
    perfect = single * ranks if measure.grows_with_ranks else single + 0 * ranks
    axes.plot(ranks, perfect, **figures.PERFECT, label="perfect scaling of the backend's own run on 1 rank")


def _draw_first_epochs(axes, curve: pd.DataFrame, measure: Measure) -> None:
    """Draw the first epochs of a backend's runs, which include start-up. On emulated ranks they don't."""
    if curve["first_epoch_only"].any():
        axes.plot([], [], " ", marker="", label="one epoch only: includes start-up")
    else:
        axes.plot(curve["world_size"], curve[measure.first_epoch], **CROSS, label="first epoch (start-up included)")
