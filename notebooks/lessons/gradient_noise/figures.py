"""Draws what the batch size does to learning, for 07b_gradient_noise: the noise scale, and steps to a target.

`python -m lessons.gradient_noise.figures RECORDS PICTURE` draws the steps to a target, as `make figures` does.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.results import records as run_records
from workshop_lib.notebook.results.curves import require_same
from workshop_lib.notebook.results.records import RecordError

from lessons.gradient_noise import critical_batch
from lessons.gradient_noise import steps_to_target as measured

# The published simple noise scale of MNIST, in samples (arXiv:1812.06162, table 1).
PUBLISHED = {"at the start": 50, "mean over training": 900}
# The ends of a range of batch sizes, in samples, and the text beside it. The ranges are those of the same paper.
PUBLISHED_BATCHES: dict[str, tuple[float, float, str]] = {
    "MNIST, noise scale, published": (50, 900, "50 to 900"),
    "MNIST, critical batch, published": (20, 200, "20 to 200"),
    "square root of MNIST's 60,000 images": (60_000**0.5, 60_000**0.5, "245"),
    "128 workers with 64 images each": (8192, 8192, "8,192"),
}


@figures.styled
def arrows(true: float, by_batch: Mapping[int, Sequence[tuple[float, float]]], caption: str) -> figures.RecordFigure:
    """Draw gradients of batches as arrows at their angle to the true gradient, one panel per batch size.

    true: the length of the true gradient. by_batch: for each batch size, each gradient's component along the true
    gradient, and its length. Both axes have the same scale, so the angles are the true ones.
    """
    title = "Gradients of single batches, and the true one"
    names = [f"batches of {batch}" for batch in by_batch]
    figure, panels = figures.panels(title, caption, names, "along the true gradient", "across")
    to_scale = {"angles": "xy", "scale_units": "xy", "scale": 1}
    for number, (axes, arrows) in enumerate(zip(panels, by_batch.values(), strict=True)):
        along, length = np.array(arrows).T
        across = np.sqrt(np.maximum(length**2 - along**2, 0))
        start = np.zeros_like(along)
        axes.quiver(start, start, along, across, **to_scale, width=0.008, color=palette.COLORS[number])
        axes.quiver(0, 0, true, 0, **to_scale, width=0.02, color=palette.INK, label="the true gradient, of all samples")
        axes.set_aspect("equal")
    longest = max(length for arrows in by_batch.values() for _, length in arrows)
    widest = max([true, *(abs(along) for arrows in by_batch.values() for along, _ in arrows)])
    wide = max(1.1 * widest, 0.4 * longest)
    axes.set(xlim=(-wide, wide), ylim=(-0.1 * longest, 1.1 * longest))
    return figure


@figures.styled
def noise(steps, scales, errors, caption: str) -> figures.RecordFigure:
    """Draw the noise scale [n] after `steps` [n], with a band of two standard errors [n]. NaN leaves a gap."""
    steps, scales, errors = (np.asarray(values, dtype=float) for values in (steps, scales, errors))
    figure, axes = figures.new_figure("The simple noise scale over training", caption)
    axes.plot(steps, scales, marker="", label="measured here")
    low = np.maximum(scales - 2 * errors, scales / 10)
    axes.fill_between(steps, low, scales + 2 * errors, alpha=0.2, label="two standard errors")
    for (name, level), dash in zip(PUBLISHED.items(), (":", "--"), strict=True):
        axes.axhline(
            level, **figures.LEVEL | {"linestyle": dash, "linewidth": 1.8}, label=f"published, {name}: {level}"
        )
    axes.set(xlabel="step", ylabel="noise scale (samples)", yscale="log")
    return figure


@figures.styled
def number_line(measured: Mapping[str, float]) -> figures.RecordFigure:
    """Draw batch sizes (in samples) that were measured here, and published ones, on one logarithmic axis.

    Each has a row of its own, with its name on the left. Ranges are bars between their ends.
    """
    here = {name: (value, value, f"{value:,.0f}") for name, value in measured.items()}
    rows = here | PUBLISHED_BATCHES
    caption = "blue: measured in this notebook; gray: published, or a rule"
    figure, axes = figures.new_figure("How large a batch?", caption, size_inches=(12, 1.8 + 0.38 * len(rows)))
    for row, (name, (low, high, text)) in enumerate(rows.items()):
        color = palette.BLUE if name in here else palette.GRAY
        axes.plot([low, high], [row, row], color=color, marker="o", linestyle="-", linewidth=5)
        axes.annotate(text, (high, row), (10, 0), textcoords="offset points", va="center", color=color)
    axes.set(
        xscale="log",
        xlabel="batch (samples)",
        xlim=(min(10, *measured.values()) / 1.5, 1.5 * max(2e4, *measured.values())),
    )
    figures.log_ticks(axes.xaxis, "{x:,.0f}", subs=(1,))
    figures.ticks_at(axes.yaxis, range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    return figure


@figures.styled
def steps_to_target(
    pairs: Mapping[str, tuple[Sequence, Sequence]],
    fits: Mapping[str, critical_batch.CriticalBatchFit | None],
    caption: str,
) -> figures.RecordFigure:
    """Draw steps against batch size (left), and the frontier of samples, the compute, against steps, the time (right).

    pairs: measured (batches, steps) by name. fits: their fits by name, or None where there is none. All axes are
    logarithmic. Names without pairs are left out.
    """
    pairs = {name: pair for name, pair in pairs.items() if len(pair[0])}
    figure, (left, right) = figures.new_figure("Steps to target", caption, columns=2)
    for number, (name, pair) in enumerate(pairs.items()):
        batches, steps = (np.asarray(values, dtype=float) for values in pair)
        look = figures.style(number)
        points = look | {"linestyle": ""}
        curve = look | {"marker": ""}
        left.plot(batches, steps, **points, label=name)
        right.plot(steps, steps * batches, **points)
        if fit := fits.get(name):
            line = np.geomspace(batches.min() / 1.5, batches.max() * 1.5, 200)
            left.plot(line, fit.steps(line), **curve)
            right.plot(fit.steps(line), fit.samples(line), **curve)
            upright = figures.LEVEL | {"color": look["color"]}
            left.axvline(fit.b_crit, **upright, label="upright: critical batch of the fit")
        ends = np.array([batches.min(), batches.max()])
        perfect = np.median(steps[batches == ends[0]]) * ends[0] / ends
        left.plot(ends, perfect, **figures.LEVEL, label="perfect scaling: twice the batch, half the steps")
    left.set(xlabel="batch (samples)", ylabel="steps to target (time)", xscale="log", yscale="log")
    left.set_ylim(bottom=min(min(steps) for _, steps in pairs.values()) / 2)
    right.set(xlabel="steps to target (time)", ylabel="samples to target (compute)", xscale="log", yscale="log")
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        figures.log_ticks(axis)
    return figure


def target_curve(records: Iterable[dict]) -> figures.RecordFigure:
    """Draw the steps to a target from records, with a fit if the law holds for them.

    Raises RecordError when the records differ in target, or when no batch size reached the target.
    """
    records = [record for record in records if record.get("kind") == measured.KIND]
    runs = pd.DataFrame([record["what"] for record in records])
    require_same(runs, ["target"])
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


if __name__ == "__main__":
    _, source, picture = sys.argv
    print(f"drawn: {figures.save(target_curve(run_records.read(source)), picture)}")
