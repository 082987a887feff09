"""Figures of accuracy, drawn from run records: against time or epochs, against ranks, and against workers.

Up to MOST_CURVES backends share one plot. If there are more, each gets its own panel, in which color and marker
stand for the number of ranks.
"""

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from workshop_lib.errors import InputError
from workshop_lib.notebook import figures
from workshop_lib.notebook.figures.scaling import CROSS, MOST_CURVES, caption, data_name, in_order, rank_counts
from workshop_lib.results.curves import PUBLISHED, SAME_MACHINE, SAME_RESULT, accuracies, recipe, require_same, to_frame
from workshop_lib.results.records import RecordError, name_of
from workshop_lib.words import plural

PANELS_IN_A_ROW = 5
X_LABELS = {"seconds": "training time without evaluation (s)", "epochs": "epoch"}
Y_LABEL = "test accuracy (%)"
WORKER_PANELS = {"train_accuracy": "training accuracy in the last epoch (%)", "test_accuracy": Y_LABEL}


def accuracy_curve(records: Iterable[dict], x: str = "seconds") -> Figure:
    """Test accuracy in % after each epoch, against training seconds or (x="epochs") epochs.

    One curve per backend, number of ranks and batch size shows medians over the repeats, with bars from the
    worst to the best repeat. Seconds count training alone, without the evaluation. Hollow points had more ranks
    than cores. In one plot, color and marker stand for the backend, and the line style for the ranks. With a
    panel per backend, color and marker stand for the ranks, and thin gray lines are the other backends.

    Raises InputError for another x, and RecordError if the runs differ in data, samples, epochs, optimizer or
    learning rate, or, against seconds, in the machine.
    """
    if x not in X_LABELS:
        raise InputError(f"x={x!r} is not an axis of the accuracy curve; use 'seconds' or 'epochs'.")
    records = [record for record in records if record.get("kind") == "train"]
    frame = to_frame(records)
    rows = _accuracy_rows(records)
    if rows.empty:
        raise RecordError("no training run with a full epoch among these records: nothing to draw.")
    require_same(frame[frame["first_epoch_s"].notna()], SAME_RESULT + (SAME_MACHINE if x == "seconds" else []))
    title = f"Test accuracy on {data_name(frame)}"
    draw = _accuracy_in_one if rows["backend"].nunique() <= MOST_CURVES else _accuracy_in_panels
    return draw(title, caption(frame), rows, x)


def _accuracy_in_one(title: str, text: str, rows: pd.DataFrame, x: str) -> Figure:
    figure = figures.new_figure(title, text)
    order = in_order(rows["backend"].unique())
    settings = _settings(rows)
    axes = figure.subplots()
    for (backend, *setting), curve in rows.groupby(["backend", "world_size", "batch_size"]):
        line = figures.Style.number(list(settings).index(tuple(setting))).line
        _draw_accuracy(axes, curve, x, replace(figures.Style.of(backend), line=line))
    axes.set(xlabel=X_LABELS[x], ylabel=Y_LABEL)
    level = _accuracy_axes(axes, rows, x)
    backends = [figures.handle_of(name, figures.Style.of(name), line=False) for name in order]
    lines = [
        figures.entry(name, color=figures.GRAY, linewidth=2, linestyle=figures.Style.number(index).line)
        for index, name in enumerate(settings.values())
    ]
    figures.draw_legend(figure, backends, lines, [level, *figures.hollow_note(rows["oversubscribed"].any())])
    return figure


def _accuracy_in_panels(title: str, text: str, rows: pd.DataFrame, x: str) -> Figure:
    names = in_order(rows["backend"].unique())
    settings = _settings(rows)
    down = -(-len(names) // PANELS_IN_A_ROW)
    figure = figures.new_figure(title, text, height_inches=2.6 + 2.1 * down)
    grid = figure.subplots(down, PANELS_IN_A_ROW, sharex=True, sharey=True, squeeze=False)
    curves = list(rows.groupby(["backend", "world_size", "batch_size"]))
    for name, axes in zip(names, grid.flat, strict=False):
        for (backend, *setting), curve in curves:
            if backend == name:
                _draw_accuracy(axes, curve, x, figures.Style.number(list(settings).index(tuple(setting))))
            else:
                axes.plot(*_accuracy_medians(curve, x), color=figures.GRID, linewidth=1.5, zorder=1)
        level = _accuracy_axes(axes, rows, x)
        axes.set_title(name, fontsize=figures.FONT_SIZE, weight="bold", loc="left")
        axes.tick_params(labelbottom=name in names[-PANELS_IN_A_ROW:])
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    others = figures.entry("the other backends", color=figures.GRID, linewidth=2)
    hollow = figures.hollow_note(rows["oversubscribed"].any())
    figures.draw_legend(figure, figures.handles_of(settings.values()), [level, others], hollow)
    figure.subplots_adjust(hspace=0.32, wspace=0.1)
    labels = {"fontsize": figures.FONT_SIZE, "va": "center", "ha": "center"}
    place = figure.subplotpars
    figure.text(0.54, place.bottom - 0.5 / figure.get_figheight(), X_LABELS[x], **labels)
    figure.text(0.02, (place.bottom + place.top) / 2, Y_LABEL, rotation=90, **labels)
    return figure


def _settings(rows: pd.DataFrame) -> dict[tuple[int, int], str]:
    """The name of each (world_size, batch_size); it mentions the batch size only if there are several."""
    several = rows["batch_size"].nunique() > 1
    ranks = dict(rank_counts(rows))
    names = {}
    for count, batch in sorted(set(rows[["world_size", "batch_size"]].itertuples(index=False, name=None))):
        name = f"{ranks[count]} rank" if count == 1 else f"{ranks[count]} ranks"
        names[count, batch] = f"{name}, batch {batch} per rank" if several else name
    return names


def _accuracy_rows(records: list[dict]) -> pd.DataFrame:
    rows = []
    for record in records:
        what = record["what"]
        seconds = 0.0
        same = {name: what[name] for name in ("world_size", "batch_size", "oversubscribed")}
        for epoch in record["epochs"]:
            seconds += epoch["seconds"]
            row = {"epochs": epoch["epoch"], "seconds": seconds, "accuracy": 100 * epoch["test_accuracy"]}
            rows.append({"backend": name_of(what), **same, **row})
    return pd.DataFrame(rows)


def _accuracy_medians(curve: pd.DataFrame, x: str) -> tuple:
    medians = curve.groupby("epochs")[["seconds", "accuracy"]].median()
    return (medians.index if x == "epochs" else medians["seconds"]), medians["accuracy"]


def _draw_accuracy(axes: Axes, curve: pd.DataFrame, x: str, style: figures.Style) -> None:
    values = figures.over_repeats(curve.groupby("epochs")["accuracy"])
    figures.draw_curve(axes, _accuracy_medians(curve, x)[0], values, style, bool(curve["oversubscribed"].any()))


def _accuracy_axes(axes: Axes, rows: pd.DataFrame, x: str) -> Line2D:
    """Fit the axes to all points and the line at 99 %; return the legend entry of that line."""
    low = min(rows["accuracy"].min(), 98.8)
    high = max(rows["accuracy"].max(), 99.2)
    margin = 0.06 * (high - low)
    axes.set_ylim(low - margin, min(100.0, high + margin))
    axes.set_xlim(left=0)
    if x == "epochs":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.axhline(99, **figures.LEVEL)
    return figures.entry("99 %", **figures.LEVEL)


def worker_curve(records: Iterable[dict]) -> Figure:
    """Training and test accuracy in % after the last epoch, against the number of emulated workers.

    One curve per recipe: the mean over the seeds, with bars from the worst to the best seed. Crosses are the
    published training accuracies, read off their figure.

    Raises RecordError if the runs differ in more than recipe, workers and seed.
    """
    records = list(records)
    rows = accuracies(records)
    what = records[0]["what"]
    counts = rows.groupby(["recipe", "workers"])["seed"].nunique()
    seeds = f"{counts.min()} to {counts.max()}" if counts.min() < counts.max() else counts.max()
    text = (
        f"{what['network']} network, {what['epochs']} epochs, batch {what['batch_size']} per worker; "
        f"seeds: {seeds}, bars from the worst to the best. Workers are emulated on "
        f"{plural(what['world_size'], 'rank')}: the same arithmetic."
    )
    figure = figures.new_figure("Accuracy against workers", text)
    names = list(rows["recipe"].unique())
    workers = sorted({*rows["workers"], *PUBLISHED})
    both = figure.subplots(1, 2, sharex=True)
    for axes, (column, label) in zip(both, WORKER_PANELS.items(), strict=True):
        for index, name in enumerate(names):
            shift = 2 ** (0.06 * (index - (len(names) - 1) / 2))  # moves curves apart, so that all bars show
            by_workers = rows[rows["recipe"] == name].groupby("workers")[column]
            values = figures.over_repeats(by_workers, "mean")
            figures.draw_curve(axes, values[0].index * shift, values, figures.Style.number(index))
        axes.set_xscale("log", base=2)
        figures.ticks_at(axes.xaxis, workers)
        axes.set(xlabel=f"workers (global batch = {what['batch_size']} × workers)", ylabel=label, ylim=(0, 103))
        axes.axhline(10, **figures.LEVEL)
    crosses = CROSS | {"markersize": 9, "markeredgewidth": 2.5}
    both[0].plot(list(PUBLISHED), list(PUBLISHED.values()), **crosses, zorder=4)
    guessing = figures.entry("10 %: guessing", **figures.LEVEL)
    read_off = figures.entry("published, 128 nodes (read off the figure)", **crosses)
    figures.draw_legend(figure, figures.handles_of(names), [guessing, read_off])
    return figure


def solution_curve(records: Iterable[dict]) -> Figure:
    """Seconds for the whole training (left) and final accuracy in % (right), against ranks; needs no 1-rank run.

    One curve per backend: medians over the repeats, with bars from the best to the worst; training accuracy is
    dashed. The dotted line is perfect scaling from the smallest number of ranks. Seconds count training alone,
    without the evaluation.

    Raises RecordError if runs of different recipes or machines are mixed, or if all have the same number of ranks.
    """
    runs = [record for record in records if record.get("kind") == "train" and record["epochs"]]
    runs = [record for record in runs if not record.get("stopped")]
    frame = to_frame(runs)
    require_same(frame, ["batch_size", *SAME_RESULT, *SAME_MACHINE])
    rows = pd.DataFrame([_solution(record) for record in runs])
    if rows["world_size"].nunique() == 1:
        raise RecordError("time against ranks needs runs on several numbers of ranks.")
    what = runs[0]["what"]
    order = in_order(rows["backend"].unique())
    rates = f", {recipe(what)}" if "lr_scaling" in what else ""
    text = f"{what.get('network', 'workshop')} network, {what['epochs']} epochs{rates}; {caption(frame)}"
    figure = figures.new_figure(f"Time to solution and accuracy on {data_name(frame)}", text)
    time, accuracy = figure.subplots(1, 2)
    for name, curve in rows.groupby("backend"):
        style = figures.Style.of(name)
        _draw_medians(time, curve, "seconds", style)
        _draw_medians(accuracy, curve, "train_accuracy", figures.Style(style.color, "", "--"))
        _draw_medians(accuracy, curve, "test_accuracy", style)
        seconds = curve.groupby("world_size")["seconds"].median()
        time.plot(seconds.index, seconds.iloc[0] * seconds.index[0] / seconds.index, **figures.PERFECT)
    counts, names = zip(*rank_counts(rows), strict=True)
    for axes in (time, accuracy):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("ranks")
        figures.ticks_at(axes.xaxis, counts, list(names))
    time.set(yscale="log", ylabel="training time of the whole run (s)")
    figures.log_ticks(time.yaxis)
    accuracy.set(ylabel="accuracy after the last epoch (%)", ylim=(0, 103))
    handles = [figures.handle_of(name, figures.Style.of(name)) for name in order]
    notes: list[Artist] = [
        figures.entry("perfect", **figures.PERFECT),
        figures.entry("training accuracy", color=figures.GRAY, linestyle="--"),
    ]
    figures.draw_legend(figure, handles, [*notes, *figures.hollow_note(rows["oversubscribed"].any())])
    return figure


def _solution(record: dict) -> dict:
    what = record["what"]
    last = record["epochs"][-1]
    return {
        "backend": name_of(what),
        **{name: what[name] for name in ("world_size", "oversubscribed")},
        **{name: 100 * last[name] for name in ("train_accuracy", "test_accuracy")},
        "seconds": sum(epoch["seconds"] for epoch in record["epochs"]),
    }


def _draw_medians(axes: Axes, curve: pd.DataFrame, column: str, style: figures.Style) -> None:
    values = figures.over_repeats(curve.groupby("world_size")[column])
    figures.draw_curve(axes, values[0].index, values, style, bool(curve["oversubscribed"].any()))
