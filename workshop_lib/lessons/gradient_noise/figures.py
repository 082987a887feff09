"""Draws what the batch size does to learning, for 07b_gradient_noise: the noise scale, and steps to a target."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter

from workshop_lib.lessons.gradient_noise import critical_batch
from workshop_lib.lessons.gradient_noise import steps_to_target as measured
from workshop_lib.notebook.figures import old as figures
from workshop_lib.results.curves import require_same
from workshop_lib.results.records import RecordError

# The published simple noise scale of MNIST, in samples (arXiv:1812.06162, table 1).
PUBLISHED = {"at the start": 50, "mean over training": 900}


def arrows(true: float, by_batch: Mapping[int, Sequence[tuple[float, float]]], caption: str) -> figures.RecordFigure:
    """Draw gradients of batches as arrows at their angle to the true gradient, one panel per batch size.

    true: the length of the true gradient. by_batch: for each batch size, each gradient's component along the true
    gradient, and its length. The arrows point above and below the true gradient in turn.
    """
    figure = figures.new_figure("Gradients of single batches, and the true one", caption)
    panels = np.atleast_1d(figure.subplots(1, len(by_batch), sharex=True, sharey=True))
    longest = max(length for arrows in by_batch.values() for _, length in arrows)
    for number, (axes, (batch, arrows)) in enumerate(zip(panels, by_batch.items(), strict=True)):
        look = {"arrowstyle": "->", "color": figures.Style.number(number).color}
        for turn, (along, length) in enumerate(arrows):
            across = (-1) ** turn * np.sqrt(max(length**2 - along**2, 0))
            axes.annotate("", (along, across), (0, 0), arrowprops=look)
        axes.annotate("", (true, 0), (0, 0), arrowprops={"arrowstyle": "-|>", "lw": 3, "color": "black"})
        axes.set_title(f"batches of {batch}", fontsize=12)
        axes.set(xlim=(-longest / 2, longest / 2), ylim=(-longest, longest), xlabel="along the true gradient")
    panels[0].set_ylabel("across")
    figures.draw_legend(figure, [figures.entry("the true gradient, of all samples", lw=3, color="black")])
    figure.subplots_adjust(top=0.8)
    return figure


def noise(steps, scales, errors, caption: str) -> figures.RecordFigure:
    """Draw the noise scale [n] after `steps` [n], with a band of two standard errors [n]. NaN leaves a gap."""
    steps, scales, errors = (np.asarray(values, dtype=float) for values in (steps, scales, errors))
    figure = figures.new_figure("The simple noise scale over training", caption)
    style = figures.Style.number(0)
    axes = figure.subplots()
    [line] = axes.plot(steps, scales, color=style.color, linewidth=2, label="measured here")
    low = np.maximum(scales - 2 * errors, scales / 10)
    high = scales + 2 * errors
    band = axes.fill_between(steps, low, high, color=style.color, alpha=0.2, label="two standard errors")
    for name, level in PUBLISHED.items():
        axes.axhline(level, **figures.LEVEL)
        above = {"textcoords": "offset points", "ha": "right", "color": figures.GRAY, "fontsize": 11}
        axes.annotate(f"published, {name}: {level}", (steps[-1], level), (0, 4), **above)
    axes.set(xlabel="step", ylabel="noise scale (samples)", yscale="log")
    figures.draw_legend(figure, [line], [band])
    return figure


def steps_to_target(
    pairs: Mapping[str, tuple[Sequence, Sequence]],
    fits: Mapping[str, critical_batch.CriticalBatchFit | None],
    title: str,
) -> figures.RecordFigure:
    """Draw steps against batch size (left), and the frontier of samples, the compute, against steps, the time (right).

    pairs: measured (batches, steps) by name. fits: their fits by name, or None where there is none. All axes are
    logarithmic.
    """
    figure = figures.new_figure("Steps to target", title)
    left, right = figure.subplots(1, 2)
    handles = []
    for number, (name, pair) in enumerate(pairs.items()):
        style = figures.Style.number(number)
        fit = fits.get(name)
        batches, steps = (np.asarray(values, dtype=float) for values in pair)
        left.plot(batches, steps, style.marker, color=style.color, ms=8)
        right.plot(steps, steps * batches, style.marker, color=style.color, ms=8)
        handles.append(figures.handle_of(name, style, line=fit is not None))
        if fit is not None:
            line = np.geomspace(batches.min() / 1.5, batches.max() * 1.5, 200)
            left.plot(line, fit.steps(line), **style.curve)
            right.plot(fit.steps(line), fit.samples(line), **style.curve)
            left.axvline(fit.b_crit, **figures.LEVEL | {"color": style.color})
        ends = np.array([batches.min(), batches.max()])
        left.plot(ends, np.median(steps[batches == ends[0]]) * ends[0] / ends, **figures.LEVEL)
    left.set_ylim(bottom=min(min(steps) for _, steps in pairs.values()) / 2)
    left.set(xlabel="batch (samples)", ylabel="steps to target (time)", xscale="log", yscale="log")
    right.set(xlabel="steps to target (time)", ylabel="samples to target (compute)", xscale="log", yscale="log")
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_formatter(NullFormatter())
    notes = [
        figures.entry("perfect scaling: twice the batch, half the steps", **figures.LEVEL),
        figures.entry("upright: critical batch of the fit", **figures.LEVEL | {"color": figures.BLUE}),
    ]
    figures.draw_legend(figure, handles, notes)
    return figure


def target_curve(records: Iterable[dict]) -> figures.RecordFigure:
    """Draw the steps to a target from records, with a fit if the law holds for them.

    Raises RecordError when the records differ in target or data, or when no batch size reached the target.
    """
    records = [record for record in records if record.get("kind") == measured.KIND]
    runs = pd.DataFrame([record["what"] for record in records])
    require_same(runs, ["target", "data_dir"])
    name = f"to {runs['target'][0]:.0%} test accuracy"
    pairs = {name: measured.pairs(records)}
    fits = dict[str, critical_batch.CriticalBatchFit | None]()
    if not pairs[name][0]:
        raise RecordError(f"no batch size got {name} with every seed: nothing to draw.")
    seeds = runs["seed"].nunique()
    title = f"MNIST, plain SGD, learning rate tuned at each batch size; seeds: {seeds}"
    try:
        fit = fits[name] = critical_batch.fit(*pairs[name])
        low, high = fit.intervals["b_crit"]
        title += f"; critical batch {fit.b_crit:.0f} (95 %: {low:.0f} to {high:.0f})"
    except ValueError as error:
        title += f"; no fit: {error}"
    return steps_to_target(pairs, fits, title)
