"""Figures of 07_large_batch: learning-rate schedules, runs epoch by epoch, overlong steps, and the clinic."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from workshop_lib.lessons.large_batch import recipes
from workshop_lib.notebook import figures, palette
from workshop_lib.results.curves import recipe
from workshop_lib.training import GUESS_LOSS, schedules

DECAY_EPOCHS = 10
WARMUP_EPOCHS = 2
DECAY_STEPS_PER_EPOCH = 20
BOWL_RATES = (0.5, 1.8, 2.1)
BOWL_STEPS = 8
LEAST_CURVATURE = 0.1  # below this curvature, the longest stable rate means nothing


@figures.styled
def decays() -> figures.RecordFigure:
    """Draw every decay after a gradual warm-up, as shares of the peak: linear and log scale."""
    title = f"The learning rate over {DECAY_EPOCHS} epochs, as a share of its peak"
    figure, both = figures.new_figure(title, f"the first {WARMUP_EPOCHS} epochs: warm-up", columns=2)
    steps, warmup = (epochs * DECAY_STEPS_PER_EPOCH for epochs in (DECAY_EPOCHS, WARMUP_EPOCHS))
    at = np.arange(steps) / DECAY_STEPS_PER_EPOCH
    for axes in both:
        for decay in schedules.DECAYS:
            rates = [schedules.lr_at(step, steps, 1.0, warmup, decay) for step in range(steps)]
            axes.plot(at, rates, marker="", label=decay)
        axes.set(xlabel="epoch", ylabel="learning rate / peak")
    both[1].set_yscale("log")
    return figure


@figures.styled
def by_epoch(records: Iterable[dict], workers: int) -> figures.RecordFigure:
    """Draw the test accuracy in % after each epoch of every run with this many workers, one line per seed."""
    runs = [record for record in records if record["what"]["emulate_workers"] == workers]
    names = list(dict.fromkeys(recipe(run["what"]) for run in runs))
    figure, axes = figures.new_figure(f"{workers} workers, epoch by epoch", "each seed is a line")
    for run in runs:
        name = recipe(run["what"])
        accuracies = [100 * epoch["test_accuracy"] for epoch in run["epochs"]]
        look = figures.style(names.index(name)) | {"marker": ""}
        axes.plot(range(1, len(accuracies) + 1), accuracies, **look, label=name)
    axes.axhline(10, **figures.LEVEL, label="10 %: guessing")
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(0, 103))
    return figure


@figures.styled
def clinic(runs: Mapping[str, dict], treated: Mapping[str, dict] | None = None) -> figures.RecordFigure:
    """Draw the losses after each epoch against steps, one panel per run. Thin lines show the treated run, if any."""
    treated = treated or {}
    titles = []
    every = []
    for name, run in runs.items():
        both = [run, treated[name]] if name in treated else [run]
        every.append(both)
        ends = [f"{100 * each['epochs'][-1]['test_accuracy']:.0f} %" for each in both]
        titles.append(f"{name}: {' → '.join(ends)}")
    caption = "in the titles: test accuracy at the end"
    if treated:
        caption += "; thin lines: after your change"
    columns = -(-len(runs) // 2)
    # A cure may take ten times as many steps as the other runs, which one scale of steps would squeeze together.
    figure, panels = figures.panels(
        "Losses in the clinic", caption, titles, "steps", "loss", columns, same_x=not treated
    )
    kinds = {"train_loss": "training loss", "test_loss": "test loss"}
    for axes, both in zip(panels, every, strict=True):
        for each, width in zip(both, (2.2, 1.0), strict=False):
            for number, (column, label) in enumerate(kinds.items()):
                losses = [np.nan if epoch[column] is None else epoch[column] for epoch in each["epochs"]]
                look = figures.style(number) | {"marker": ".", "linewidth": width}
                axes.plot(recipes.steps(each), losses, **look, label=label)
        axes.axhline(GUESS_LOSS, **figures.LEVEL, label="guessing")
        axes.set_ylim(0, 1.6 * GUESS_LOSS)
    return figure


@figures.styled
def bowl() -> figures.RecordFigure:
    """Draw gradient descent in a bowl of curvature 1, from the same start, at each rate in BOWL_RATES."""
    caption = f"gradient descent on w²/2, whose curvature λ is 1; {BOWL_STEPS} steps"
    titles = [f"η = {rate:g}/λ" for rate in BOWL_RATES]
    figure, panels = figures.panels("The same bowl, three learning rates", caption, titles, "weight", "loss")
    outside = 2.4
    at = np.linspace(-outside, outside, 200)
    for axes, rate in zip(panels, BOWL_RATES, strict=True):
        w = (1 - rate) ** np.arange(BOWL_STEPS + 1)
        axes.plot(at, at**2 / 2, color=palette.GRAY, linewidth=1.5, marker="", label="the bowl")
        axes.plot(w, w**2 / 2, color=palette.BLUE, linewidth=1.5, marker="o", linestyle="-", label="the steps")
        axes.set(xlim=(-outside, outside), ylim=(0, outside**2 / 2))
    return figure


@figures.styled
def limits(followed: Mapping[str, Sequence[tuple]], momentum: float) -> figures.RecordFigure:
    """Draw losses (left), and the learning rate beside its limit 2 (1 + momentum) / curvature (right), against steps.

    followed: {name: rows of (step, rate, loss, curvature)}. Names of runs with warm-up contain "after", and only these
    runs appear on the right.
    """
    caption = "right, thick: the longest stable rate, the limit; thin: the rate"
    figure, (left, right) = figures.new_figure("Loss and limit", caption, columns=2)
    for index, name in enumerate(sorted(followed)):
        step, rate, loss, curvature = np.array(followed[name]).T
        look = figures.style(index)
        left.plot(step, loss, **look, label=name)
        if "after" in name:
            longest = 2 * (1 + momentum) / np.maximum(curvature, LEAST_CURVATURE)
            limit = np.where(curvature > LEAST_CURVATURE, longest, np.nan)
            right.plot(step, limit, **look)
            right.plot(step, rate, **look | {"linewidth": 1, "marker": ""})
    left.axhline(GUESS_LOSS, **figures.LEVEL, label="guessing")
    left.set(xlabel="step", ylabel="loss")
    right.set(xlabel="step", ylabel="learning rate", yscale="log")
    return figure
