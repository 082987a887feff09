"""The figure of 07c_less_communication: test accuracy against bytes per sample."""

from collections.abc import Iterable, Mapping

import pandas as pd

from workshop_lib.machine import catalogue
from workshop_lib.notebook import figures
from workshop_lib.notebook.results.curves import require_same

from lessons.less_communication import runs as less


@figures.styled
def less_communication(records: Iterable[dict]) -> figures.RecordFigure:
    """Draw test accuracy against bytes per sample, from records: each method's median, lowest and highest seed.

    The same method with a different learning rate or momentum counts as a method of its own. Raises RecordError when
    runs differ in world size, batch size or steps.
    """
    runs = pd.DataFrame([record["what"] | record for record in records if record.get("kind") == less.KIND])
    require_same(runs, ["world_size", "batch_size", "steps"])
    first = runs.iloc[0]
    caption = f"MNIST, {first.world_size} ranks with batches of {first.batch_size}, {first.steps} steps of SGD, rate "
    caption += f"{first.lr:g} unless noted; median and range of {runs.seed.nunique()} seeds"
    figure, axes = figures.new_figure("What does a byte buy?", caption)
    for (way, lr, momentum), of_way in runs.groupby(["way", "lr", "momentum"], sort=False):
        reached = 100 * of_way["test_accuracy"]
        name = f"{way}, momentum {momentum:g}" if momentum else way
        label = name if lr == first.lr else f"{name}, rate {lr:g}"
        values = reached.median(), reached.min(), reached.max()
        figures.draw_points(axes, of_way["bytes_per_sample"].iloc[0], values, linestyle="", label=label)
    axes.set(xlabel="bytes per sample that a rank hands to collectives", ylabel="test accuracy (%)", xscale="log")
    figures.log_ticks(axes.xaxis)
    return figure


@figures.styled
def step_times(step_ms: Mapping[float, Mapping[str, float]], emulated_on: str) -> figures.RecordFigure:
    """Draw the milliseconds of a step against the bandwidth in GB/s, a line per way to send: step_ms[GB/s][way]."""
    text = f"All times are emulated on {catalogue.label(emulated_on)}, with other bandwidths. None was measured."
    figure, axes = figures.new_figure("When does compressing pay?", text)
    for number, way in enumerate(next(iter(step_ms.values()))):
        axes.plot(list(step_ms), [times[way] for times in step_ms.values()], **figures.style(number), label=way)
    axes.set(xlabel="bandwidth between nodes (GB/s)", ylabel="step (ms)", xscale="log", yscale="log")
    figures.log_ticks(axes.xaxis)
    figures.log_ticks(axes.yaxis)
    return figure
