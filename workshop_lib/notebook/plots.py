"""Figures drawn from run records: strong and weak scaling against ranks, accuracy against time."""

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

from workshop_lib.notebook.figures import (
    GREY,
    LEVEL,
    LINES,
    Style,
    caption,
    data_name,
    draw_curve,
    draw_legend,
    draw_points,
    handle_of,
    hollow_note,
    in_columns,
    in_order,
    new_figure,
    save,
)  # fmt: skip
from workshop_lib.scaling.curves import SAME_MACHINE, SAME_RESULT, require_same, strong_scaling, to_frame, weak_scaling
from workshop_lib.scaling.records import RecordError, name_of

__all__ = ["accuracy_curve", "save", "scaling_curve", "weak_scaling_curve"]

FIRST_EPOCH = {"samples_per_s": "first_epoch_samples_per_s", "epoch_s": "first_epoch_s"}


def scaling_curve(records: Iterable[dict], same: str = "batch_size") -> Figure:
    """Measured strong scaling: samples/s (left) and parallel efficiency in % (right) against ranks.

    One curve a backend and `same` ("batch_size" per rank, or "global_batch"): the median over the
    repeats of the epochs after the first, bars from the slowest to the fastest repeat. Hollow points
    ran more ranks than cores. Small crosses are first epochs, start-up included.

    Raises RecordError without a 1-rank run of every curve, or if machines, data or settings are mixed.
    """
    frame = to_frame(records)
    points = strong_scaling(frame, same)
    title = f"Strong scaling on {data_name(frame)}"
    figure, speed = _against_ranks(title, frame, points, same, "samples_per_s")
    speed.set_ylabel("throughput (samples/s)")
    if _wide(points):
        speed.set_yscale("log")
        speed.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        speed.yaxis.set_minor_locator(NullLocator())
    else:
        speed.set_ylim(bottom=0)
    speed.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return figure


def weak_scaling_curve(records: Iterable[dict], same: str = "batch_size") -> Figure:
    """Measured weak scaling: seconds an epoch (left) and weak efficiency in % (right) against ranks, where
    the samples of an epoch grow with the ranks. Points, bars and crosses as in `scaling_curve`.

    Raises RecordError without a 1-rank run of every curve, or unless the samples a rank are the same.
    """
    frame = to_frame(records)
    points = weak_scaling(frame, same)
    title = f"Weak scaling on {data_name(frame)}: {frame['samples_per_rank'].iloc[0]:,.0f} samples a rank"
    figure, seconds = _against_ranks(title, frame, points, same, "epoch_s")
    seconds.set_ylabel("time of an epoch (s)")
    seconds.set_ylim(bottom=0)
    return figure


def _against_ranks(title: str, frame, points: pd.DataFrame, same: str, column: str) -> tuple[Figure, Axes]:
    """The figure, and its left axes, on which `column` is drawn; efficiency is on the right."""
    figure = new_figure(title, caption(frame))
    left, efficiency = figure.subplots(1, 2)
    _rank_axes(left, efficiency, points)
    curves = _curves(points, same)
    handles = []
    for index, (name, style, curve) in enumerate(curves):
        place = (index - (len(curves) - 1) / 2) * min(1, 3 / len(curves))
        at = _beside(curve["world_size"], place, points)
        _draw(left, at, curve, column, 1, style)
        _draw(efficiency, at, curve, "efficiency", 100, style)
        if not curve["first_epoch_only"].any():
            left.plot(at, curve[FIRST_EPOCH[column]], "x", color=style.colour, ms=7)
        handles.append(handle_of(name, style))
    notes = [_draw_ideal(left, efficiency, points, column), *_notes(points)]
    efficiency.set_ylabel("parallel efficiency (%)")
    efficiency.set_ylim(0, max(110, 108 * points["efficiency_max"].max()))
    columns = in_columns(handles)
    draw_legend(figure, *columns, *([notes] if len(columns) > 1 else [notes[:2], notes[2:]]))
    return figure, left


def accuracy_curve(records: Iterable[dict], x: str = "seconds") -> Figure:
    """Test accuracy in % after each epoch, against training seconds or (x="epochs") epochs.

    One curve a backend, number of ranks and batch size: medians over the repeats, bars from the worst
    to the best repeat. Seconds are those of training, without the evaluation. Colour and marker tell
    the backend, the line style the ranks; hollow points ran more ranks than cores.

    Raises RecordError if runs are mixed that differ in data, samples, epochs, optimizer or learning rate,
    or, against seconds, in the machine.
    """
    if x not in ("seconds", "epochs"):
        raise ValueError(f"x={x!r} is not an axis of the accuracy curve; use 'seconds' or 'epochs'.")
    records = [record for record in records if record.get("kind") == "train"]
    frame, rows = to_frame(records), _accuracy_rows(records)
    if rows.empty:
        raise RecordError("no training run with a full epoch among these records: nothing to draw.")
    same = SAME_RESULT + (SAME_MACHINE if x == "seconds" else [])
    require_same(frame[frame["first_epoch_s"].notna()], same)
    figure = new_figure(f"Test accuracy on {data_name(frame)}", caption(frame))
    axes = figure.subplots()
    order = in_order(rows["backend"].unique())
    settings = sorted(set(rows[["world_size", "batch_size"]].itertuples(index=False, name=None)))
    for (backend, *setting), curve in rows.groupby(["backend", "world_size", "batch_size"]):
        line = LINES[settings.index(tuple(setting)) % len(LINES)]
        style = replace(Style.number(order[backend]), line=line)
        _draw_accuracy(axes, curve, x, style, bool(curve["oversubscribed"].any()))
    axes.axhline(99, **LEVEL)
    axes.set_ylabel("test accuracy (%)")
    axes.set_xlabel("training time without evaluation (s)" if x == "seconds" else "epoch")
    axes.set_ylim(*_accuracy_limits(rows))
    axes.set_xlim(left=0)
    if x == "epochs":
        axes.xaxis.set_major_locator(FixedLocator(range(1, int(rows["epochs"].max()) + 1)))
    level = Line2D([], [], **LEVEL, label="99 %")
    backends = [handle_of(name, Style.number(number), line=False) for name, number in order.items()]
    draw_legend(figure, *in_columns(backends), _setting_handles(rows, settings), [level, *hollow_note(rows)])
    return figure


def _setting_handles(rows: pd.DataFrame, settings: list[tuple[int, int]]) -> list[Line2D]:
    several = rows["batch_size"].nunique() > 1
    above = set(rows.loc[rows["oversubscribed"], "world_size"])
    handles = []
    for index, (ranks, batch) in enumerate(settings):
        name = f"{ranks}{'*' * (ranks in above)} rank{'s' * (ranks > 1)}"
        line = LINES[index % len(LINES)]
        handles.append(Line2D([], [], color=GREY, linewidth=2, linestyle=line))
        handles[-1].set_label(f"{name}, batch {batch} a rank" if several else name)
    return handles


def _curves(points: pd.DataFrame, same: str) -> list[tuple[str, Style, pd.DataFrame]]:
    """Name, style and points of each curve; batches are named only if a backend ran with several."""
    order = in_order(points["backend"].unique())
    groups = sorted(points.groupby(["backend", same]), key=lambda pair: (order[pair[0][0]], pair[0][1]))
    if len(groups) == len(order):
        return [(key[0], Style.number(order[key[0]]), curve) for key, curve in groups]
    word = {"batch_size": "batch {} a rank", "global_batch": "global batch {}"}[same]
    return [
        (f"{backend}, {word.format(batch)}", Style.number(index), curve)
        for index, ((backend, batch), curve) in enumerate(groups)
    ]


def _wide(points: pd.DataFrame) -> bool:
    """Whether the ranks span so much that the axes are logarithmic."""
    return points["world_size"].max() > 8


def _beside(ranks: pd.Series, place: float, points: pd.DataFrame) -> pd.Series:
    """Ranks shifted a little, so that the bars of one curve do not hide those of the next."""
    if _wide(points):
        return ranks * 2 ** (0.08 * place)
    return ranks + 0.022 * place * points["world_size"].max()


def _draw(axes, at: pd.Series, curve: pd.DataFrame, column: str, scale: float, style: Style) -> None:
    middle = scale * curve[column]
    low, high = scale * curve[f"{column}_min"], scale * curve[f"{column}_max"]
    axes.plot(at, middle, color=style.colour, linestyle=style.line, linewidth=2, zorder=2)
    for hollow in (False, True):
        chosen = curve["oversubscribed"] == hollow
        if chosen.any():
            # A point measured once has no spread to show.
            known = chosen & (curve["repeats"] > 1)
            bars = [(middle - low).where(known)[chosen], (high - middle).where(known)[chosen]]
            draw_points(axes, at[chosen], middle[chosen], bars, style, hollow)


def _draw_ideal(left, efficiency, points: pd.DataFrame, column: str) -> Line2D:
    """The line of perfect scaling, from the fastest 1-rank run."""
    single = points[points["world_size"] == 1]
    best = single.loc[single["samples_per_s"].idxmax()]
    ends = [1, points["world_size"].max()]
    look = {"color": GREY, "linewidth": 1.5, "linestyle": (0, (1, 1.5)), "zorder": 1}
    grows = column == "samples_per_s"
    left.plot(ends, [best[column] * (end if grows else 1) for end in ends], **look)
    efficiency.axhline(100, **look)
    label = f"ideal: {'ranks × ' if grows else 'as on '}1 rank of {best['backend']}"
    return Line2D([], [], **look, label=label)


def _rank_axes(left, efficiency, points: pd.DataFrame) -> None:
    """A tick at every measured number of ranks; a star says that it is more than the cores."""
    counts = sorted(points["world_size"].unique())
    above = set(points.loc[points["oversubscribed"], "world_size"])
    for axes in (left, efficiency):
        if _wide(points):
            axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(counts))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([f"{count}{'*' * (count in above)}" for count in counts])
        axes.set_xlabel("ranks")


def _notes(points: pd.DataFrame) -> list[Line2D]:
    notes = []
    if not points["first_epoch_only"].all():
        cross = Line2D([], [], color=GREY, marker="x", linestyle="", markersize=7)
        cross.set_label("first epoch (start-up included)")
        notes.append(cross)
    if points["first_epoch_only"].any():
        notes.append(Line2D([], [], linestyle="", label="one epoch only: start-up is in the curve"))
    return notes + hollow_note(points)


def _accuracy_rows(records: list[dict]) -> pd.DataFrame:
    rows = []
    for record in records:
        seconds = 0.0
        same = {name: record["what"][name] for name in ("world_size", "batch_size")}
        same["backend"] = name_of(record["what"])
        for epoch in record["epochs"]:
            seconds += epoch["seconds"]
            row = {"epochs": epoch["epoch"], "seconds": seconds, "accuracy": 100 * epoch["test_accuracy"]}
            rows.append({**same, **row, "oversubscribed": record["what"]["oversubscribed"]})
    return pd.DataFrame(rows)


def _draw_accuracy(axes, curve: pd.DataFrame, x: str, style: Style, hollow: bool) -> None:
    epochs = curve.groupby("epochs")
    accuracy = epochs["accuracy"]
    middle = accuracy.median()
    at = middle.index if x == "epochs" else epochs["seconds"].median()
    known = accuracy.count() > 1
    bars = [(middle - accuracy.min()).where(known), (accuracy.max() - middle).where(known)]
    draw_curve(axes, at, middle, bars, style, hollow)


def _accuracy_limits(rows: pd.DataFrame) -> tuple[float, float]:
    """From just under the worst point to just over the best, the 99 % line always inside."""
    low, high = min(rows["accuracy"].min(), 98.8), max(rows["accuracy"].max(), 99.2)
    margin = 0.06 * (high - low)
    return low - margin, min(100.0, high + margin)
