"""Figures of accuracy, drawn from run records: against time, against ranks, and against workers."""

from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes

from workshop_lib.notebook import figures
from workshop_lib.notebook.figures.scaling import CROSS, caption, data_name, in_order, rank_counts
from workshop_lib.notebook.results.curves import (
    PUBLISHED,
    SAME_MACHINE,
    SAME_RESULT,
    accuracies,
    recipe,
    require_same,
    to_frame,
)
from workshop_lib.notebook.results.records import RecordError, name_of
from workshop_lib.words import plural

Y_LABEL = "test accuracy (%)"
WORKER_PANELS = {"train_accuracy": "training accuracy in the last epoch (%)", "test_accuracy": Y_LABEL}


@figures.styled
def accuracy_curve(records: Iterable[dict]) -> figures.RecordFigure:
    """Test accuracy in % after each epoch, against training seconds: a panel per backend.

    One curve per number of ranks and batch size shows medians over the repeats, with bars from the worst to the best
    repeat. Seconds count training alone, without the evaluation. Hollow points had more ranks than cores. Thin gray
    lines are the other backends.

    Raises RecordError if the runs differ in data, samples, epochs, optimizer, learning rate or machine.
    """
    records = [record for record in records if record.get("kind") == "train"]
    frame = to_frame(records)
    rows = _accuracy_rows(records)
    if rows.empty:
        raise RecordError("no training run with a full epoch among these records: nothing to draw.")
    require_same(frame[frame["first_epoch_s"].notna()], SAME_RESULT + SAME_MACHINE)
    names = in_order(rows["backend"].unique())
    settings = _settings(rows)
    curves = list(rows.groupby(["backend", "world_size", "batch_size"]))
    title = f"Test accuracy on {data_name(frame)}"
    text = f"{caption(frame)}. Time without evaluation."
    figure, panels = figures.panels(title, text, names, "training time (s)", Y_LABEL)
    for name, axes in zip(names, panels, strict=True):
        for (backend, *setting), curve in curves:
            medians = curve.groupby("epochs")[["seconds", "accuracy"]].median()
            if backend == name:
                look = figures.style(list(settings).index(tuple(setting))) | {"label": settings[tuple(setting)]}
                values = figures.over_repeats(curve.groupby("epochs")["accuracy"])
                figures.draw_points(axes, medians["seconds"], values, hollow=curve["oversubscribed"].any(), **look)
            else:
                axes.plot(medians["seconds"], medians["accuracy"], **figures.OTHERS, label="the other backends")
        _accuracy_axes(axes, rows)
    return figure


def _settings(rows: pd.DataFrame) -> dict[tuple[int, int], str]:
    """The name of each (world_size, batch_size); it mentions the batch size only if there are several."""
    several = rows["batch_size"].nunique() > 1
    ranks = rank_counts(rows)
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


def _accuracy_axes(axes: Axes, rows: pd.DataFrame) -> None:
    """Fit the axes to all points and the line at 99 %."""
    low = min(rows["accuracy"].min(), 98.8)
    high = max(rows["accuracy"].max(), 99.2)
    margin = 0.06 * (high - low)
    axes.set_ylim(low - margin, min(100.0, high + margin))
    axes.set_xlim(left=0)
    axes.axhline(99, **figures.LEVEL, label="99 %")


@figures.styled
def worker_curve(records: Iterable[dict]) -> figures.RecordFigure:
    """Training and test accuracy in % after the last epoch, against the number of emulated workers.

    One curve per recipe: the mean over the seeds, with bars from the worst to the best seed. Crosses are the
    published training accuracies, read off their figure.

    Raises RecordError if the runs differ in more than recipe, workers and seed.
    """
    records = list(records)
    rows = accuracies(records)
    what = next(record["what"] for record in records if record["kind"] == "train")
    counts = rows.groupby(["recipe", "workers"])["seed"].nunique()
    seeds = f"{counts.min()} to {counts.max()}" if counts.min() < counts.max() else counts.max()
    text = (
        f"{what['network']} network, {what['epochs']} epochs, batch {what['batch_size']} per worker; "
        f"seeds: {seeds}, bars from the worst to the best. Workers are emulated on "
        f"{plural(what['world_size'], 'rank')}: the same arithmetic."
    )
    figure, both = figures.new_figure("Accuracy against workers", text, columns=2, sharex=True)
    names = list(rows["recipe"].unique())
    for axes, (column, label) in zip(both, WORKER_PANELS.items(), strict=True):
        for index, name in enumerate(names):
            shift = 2 ** (0.06 * (index - (len(names) - 1) / 2))  # moves curves apart, so that all bars show
            by_workers = rows[rows["recipe"] == name].groupby("workers")[column]
            values = figures.over_repeats(by_workers, "mean")
            figures.draw_points(axes, values[0].index * shift, values, label=name)
        axes.axhline(10, **figures.LEVEL, label="10 %: guessing")
        axes.set_xscale("log", base=2)
        figures.ticks_at(axes.xaxis, sorted({*rows["workers"], *PUBLISHED}))
        axes.set(xlabel=f"workers (global batch = {what['batch_size']} × workers)", ylabel=label, ylim=(0, 103))
    crosses = CROSS | {"markersize": 9, "markeredgewidth": 2.5, "zorder": 4}
    both[0].plot(*zip(*PUBLISHED.items(), strict=True), **crosses, label="published, 128 nodes (read off the figure)")
    return figure


@figures.styled
def solution_curve(records: Iterable[dict]) -> figures.RecordFigure:
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
    rates = f", {recipe(what)}" if "lr_scaling" in what else ""
    text = f"{what.get('network', 'workshop')} network, {what['epochs']} epochs{rates}; {caption(frame)}"
    title = f"Time to solution and accuracy on {data_name(frame)}"
    figure, (time, accuracy) = figures.new_figure(title, text, columns=2)
    for name in in_order(rows["backend"].unique()):
        curve = rows[rows["backend"] == name]
        look = figures.style_of(name) | {"linestyle": "-"}
        _draw_medians(time, curve, "seconds", **look, label=name)
        seconds = curve.groupby("world_size")["seconds"].median()
        perfect = seconds.iloc[0] * seconds.index[0] / seconds.index
        time.plot(seconds.index, perfect, **figures.PERFECT, label="perfect")
        _draw_medians(accuracy, curve, "test_accuracy", **look, label=name)
        dashed = {"color": look["color"], "marker": "", "linestyle": "--"}
        _draw_medians(accuracy, curve, "train_accuracy", **dashed, label="training accuracy")
    counts = rank_counts(rows)
    for axes in (time, accuracy):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("ranks")
        figures.ticks_at(axes.xaxis, counts, list(counts.values()))
    time.set(yscale="log", ylabel="training time of the whole run (s)")
    figures.log_ticks(time.yaxis)
    accuracy.set(ylabel="accuracy after the last epoch (%)", ylim=(0, 103))
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


def _draw_medians(axes: Axes, curve: pd.DataFrame, column: str, **look) -> None:
    by_ranks = curve.groupby("world_size")
    values = figures.over_repeats(by_ranks[column])
    hollow = by_ranks["oversubscribed"].any() & bool(look["marker"])
    figures.draw_points(axes, values[0].index, values, hollow=hollow, **look)
