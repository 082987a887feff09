"""Figures of 07_large_batch: learning-rate schedules, runs epoch by epoch, overlong steps, and LARS's rates."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from workshop_lib.lessons.large_batch import recipes
from workshop_lib.notebook.figures import old as figures
from workshop_lib.results.curves import recipe
from workshop_lib.training import GUESS_LOSS, schedules

DECAY_EPOCHS = 10
WARMUP_EPOCHS = 2
DECAY_STEPS_PER_EPOCH = 20
BOWL_RATES = (0.5, 1.8, 2.1)
BOWL_STEPS = 8
LEAST_CURVATURE = 0.1  # below this curvature, the longest stable rate means nothing


def decays() -> figures.RecordFigure:
    """Draw every decay after a gradual warm-up, and a constant warm-up, as shares of the peak: linear and log scale."""
    title = f"The learning rate over {DECAY_EPOCHS} epochs, as a share of its peak"
    figure = figures.new_figure(title, f"the first {WARMUP_EPOCHS} epochs: warm-up")
    steps, warmup = (epochs * DECAY_STEPS_PER_EPOCH for epochs in (DECAY_EPOCHS, WARMUP_EPOCHS))
    at = np.arange(steps) / DECAY_STEPS_PER_EPOCH
    both = figure.subplots(1, 2)
    handles = []
    for index, decay in enumerate(schedules.DECAYS):
        style = figures.Style.number(index)
        for axes in both:
            axes.plot(at, [schedules.lr_at(step, steps, 1.0, warmup, decay) for step in range(steps)], **style.curve)
        handles.append(figures.entry(decay, **style.curve))
    constant = {"color": figures.GRAY, "linewidth": 3, "alpha": 0.6}
    for axes in both:
        rates = [schedules.lr_at(step, steps, 1.0, warmup, warmup_lr=1 / 8) for step in range(warmup + 1)]
        axes.plot(at[: warmup + 1], rates, **constant)
        axes.set(xlabel="epoch", ylabel="learning rate / peak")
    both[1].set_yscale("log")
    handles.append(figures.entry("constant warm-up at 1/8 of the peak", **constant))
    figures.draw_legend(figure, handles)
    return figure


def by_epoch(records: Iterable[dict], workers: int) -> figures.RecordFigure:
    """Draw the test accuracy in % after each epoch of every run with this many workers, one line per seed."""
    runs = [record for record in records if record["what"]["emulate_workers"] == workers]
    names = list(dict.fromkeys(recipe(run["what"]) for run in runs))
    figure = figures.new_figure(f"{workers} workers, epoch by epoch", "each seed a line; dotted: guessing")
    axes = figure.subplots()
    for run in runs:
        style = figures.Style.number(names.index(recipe(run["what"])))
        accuracies = [100 * epoch["test_accuracy"] for epoch in run["epochs"]]
        axes.plot(range(1, len(accuracies) + 1), accuracies, **style.curve)
    axes.axhline(10, **figures.LEVEL)
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(0, 103))
    figures.draw_legend(figure, figures.handles_of(names, marker=False))
    return figure


def clinic(runs: Mapping[str, dict], treated: Mapping[str, dict] | None = None) -> figures.RecordFigure:
    """Draw the losses after each epoch against steps, one panel per run. Thin lines show the treated run, if any."""
    figure = figures.new_figure("Losses in the clinic", "dotted: guessing; test accuracy at the end in the titles", 7.2)
    panels = figure.subplots(2, -(-len(runs) // 2), sharex=True, sharey=True).flat
    kinds = {"train_loss": ("training", figures.Style.number(0)), "test_loss": ("test", figures.Style.number(1))}
    for axes, (name, run) in zip(panels, runs.items(), strict=False):
        both = [each for each in (run, (treated or {}).get(name)) if each is not None]
        for each, width in zip(both, (2.2, 1.0), strict=False):
            for column, (_, style) in kinds.items():
                losses = [np.nan if epoch[column] is None else epoch[column] for epoch in each["epochs"]]
                axes.plot(recipes.steps(each), losses, **style.curve | {"linewidth": width}, marker=".")
        ends = [f"{100 * each['epochs'][-1]['test_accuracy']:.0f} %" for each in both]
        axes.set_title(f"{name}: {' → '.join(ends)}", fontsize=figures.FONT_SIZE, loc="left")
        axes.axhline(GUESS_LOSS, **figures.LEVEL)
        axes.set(ylim=(0, 1.6 * GUESS_LOSS))
    figure.supxlabel("steps", fontsize=figures.FONT_SIZE, y=0.12)
    figure.axes[0].set_ylabel("loss")
    figures.draw_legend(figure, [figures.entry(f"{kind} loss", **style.curve) for kind, style in kinds.values()])
    figure.subplots_adjust(hspace=0.3, bottom=0.2, top=0.85)
    return figure


def bowl() -> figures.RecordFigure:
    """Draw gradient descent in a bowl of curvature 1, from the same start, at each rate in BOWL_RATES."""
    figure = figures.new_figure(
        "The same bowl, three learning rates", f"gradient descent on w²/2, whose curvature λ is 1; {BOWL_STEPS} steps"
    )
    outside = 2.4
    at = np.linspace(-outside, outside, 200)
    panels = figure.subplots(1, len(BOWL_RATES), sharey=True)
    for number, (axes, rate) in enumerate(zip(panels, BOWL_RATES, strict=True)):
        w = (1 - rate) ** np.arange(BOWL_STEPS + 1)
        axes.plot(at, at**2 / 2, color=figures.GRAY, linewidth=1.5)
        style = figures.Style.number(number)
        axes.plot(w, w**2 / 2, marker="o", color=style.color, linewidth=1.5)
        axes.set_title(f"η = {rate:g}/λ", fontsize=figures.FONT_SIZE, weight="bold")
        axes.set(xlabel="weight", xlim=(-outside, outside), ylim=(0, outside**2 / 2))
    panels[0].set_ylabel("loss")
    figures.draw_legend(
        figure, [figures.entry("the bowl", color=figures.GRAY)], [figures.entry("the steps", marker="o")]
    )
    figure.subplots_adjust(top=0.8)
    return figure


def limits(followed: Mapping[str, Sequence[tuple]], momentum: float) -> figures.RecordFigure:
    """Draw losses (left), and the learning rate beside its limit 2 (1 + momentum) / curvature (right), against steps.

    followed: {name: rows of (step, rate, loss, curvature)}. Names of runs with warm-up contain "after", and only these
    runs appear on the right.
    """
    figure = figures.new_figure("Loss and limit", "right, thick: the longest stable rate, the limit; thin: the rate")
    left, right = figure.subplots(1, 2)
    handles = []
    for index, name in enumerate(sorted(followed)):
        step, rate, loss, curvature = np.array(followed[name]).T
        style = figures.Style.number(index)
        left.plot(step, loss, marker=style.marker, **style.curve)
        if "after" in name:
            longest = 2 * (1 + momentum) / np.maximum(curvature, LEAST_CURVATURE)
            limit = np.where(curvature > LEAST_CURVATURE, longest, np.nan)
            right.plot(step, limit, marker=style.marker, **style.curve)
            right.plot(step, rate, **style.curve | {"linewidth": 1})
        handles.append(figures.handle_of(name, style))
    left.axhline(GUESS_LOSS, **figures.LEVEL)
    left.set(xlabel="step", ylabel="loss (dotted: guessing)")
    right.set(xlabel="step", ylabel="learning rate", yscale="log")
    figures.draw_legend(figure, handles)
    return figure


def layer_rates(runs: Mapping[str, np.ndarray], layers: Sequence[str]) -> figures.RecordFigure:
    """Draw LARS's rate of each layer against steps, one panel per training. runs: {title: [steps, layers]}."""
    figure = figures.new_figure("LARS gives each layer a rate of its own", "and changes it in every step")
    panels = np.atleast_1d(figure.subplots(1, len(runs), sharey=True))
    for axes, (title, rates) in zip(panels, runs.items(), strict=True):
        for number, of_layer in enumerate(np.asarray(rates).T):
            axes.plot(np.arange(1, len(of_layer) + 1), of_layer, **figures.Style.number(number).curve)
        axes.set_title(title, fontsize=figures.FONT_SIZE, weight="bold")
        axes.set(xlabel="step", yscale="log")
    panels[0].set_ylabel("rate of the layer, λ")
    figures.draw_legend(figure, figures.handles_of(layers, marker=False))
    figure.subplots_adjust(top=0.8)
    return figure


def phases(records: Iterable[dict]) -> figures.RecordFigure:
    """Draw the test accuracy in % after each epoch, against epochs (left) and steps (right), one curve per recipe.

    A curve is the mean over the seeds, with bars from the worst seed to the best.
    """
    figure = figures.new_figure(
        "A falling rate, or a growing batch", "mean over the seeds, bars from the worst to the best"
    )
    left, right = figure.subplots(1, 2, sharey=True)
    by_name: dict[str, list[dict]] = {}
    for run in records:
        by_name.setdefault(run["recipe"], []).append(run)
    for number, runs in enumerate(by_name.values()):
        accuracies = 100 * np.array([[epoch["test_accuracy"] for epoch in run["epochs"]] for run in runs])
        epochs = np.arange(1, accuracies.shape[1] + 1)
        shift = 0.04 * (number - (len(by_name) - 1) / 2)  # keeps the recipes' bars apart
        values = accuracies.mean(axis=0), accuracies.min(axis=0), accuracies.max(axis=0)
        figures.draw_curve(left, epochs + shift, values, figures.Style.number(number))
        figures.draw_curve(right, recipes.steps(runs[0]), values, figures.Style.number(number))
    left.set(xlabel="epoch", ylabel="test accuracy (%)", xticks=epochs)
    right.set(xlabel="steps")
    figures.draw_legend(figure, figures.handles_of(by_name))
    return figure
