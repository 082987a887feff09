"""Draws who computes and who waits, and what old weights cost, for 07e_waiting_less."""

import math
from collections.abc import Sequence

import pandas as pd

from workshop_lib.notebook import figures, palette
from workshop_lib.words import plural

from lessons.waiting_less.workers import is_late

FIRST = 20  # the gradient at the left edge, because the first ones are slower
SHOWN_STEPS = 8
KEPT = 0.8  # share of the reward at staleness 0 below which a training counts as broken


@figures.styled
def timelines(runs: Sequence[dict]) -> figures.RecordFigure:
    """Draw when each worker computed its gradients, in a panel per run of `Workers.train`. The gaps are waiting.

    All panels have the same scale, on which the first run takes eight steps or so.
    """
    caption = "blue: computes a gradient; yellow: computes a gradient and is late; gaps: waits"
    title = "Who computes, and who waits?"
    size = (12, 1.9 + 1.15 * len(runs))
    figure, rows = figures.new_figure(title, caption, len(runs), size_inches=size, sharex=True, squeeze=False)
    for axes, run in zip(rows[:, 0], runs, strict=True):
        workers = len(run["computing"])
        first = run["computing"][0]
        start_s, _ = first[min(FIRST, len(first) - 1)]
        for worker, times in enumerate(run["computing"], 1):
            for step, (begin_s, end_s) in enumerate(times):
                bar = (1000 * (begin_s - start_s), 1000 * (end_s - begin_s))
                late = is_late(worker, step, workers, run["straggler"])
                color = palette.YELLOW if late else palette.BLUE
                axes.broken_barh([bar], (worker - 0.35, 0.7), color=color, edgecolor=palette.PAPER)
        figures.ticks_at(axes.yaxis, range(1, workers + 1), [f"worker {worker}" for worker in range(1, workers + 1)])
        axes.set_title(f"{run['mode']}, {run['straggler']} straggler")
        axes.grid(visible=False)
        axes.invert_yaxis()
    axes.set(xlim=(0, SHOWN_STEPS * runs[0]["ms per step"]), xlabel="milliseconds")
    return figure


def breaks_at(runs: Sequence[dict], ratios: bool) -> float:
    """The smallest staleness at which the median reward is below KEPT of that at staleness 0; nan if there is none.

    runs: those of a trainer and its generators, each with its staleness, its reward, and whether it used ratios.
    """
    rewards = _rewards(runs, ratios).median()
    broken = rewards[rewards < KEPT * rewards[0]]
    return float(broken.index.min())


def _rewards(runs: Sequence[dict], ratios: bool):
    frame = pd.DataFrame(runs)
    return frame[frame["ratios"] == ratios].groupby("staleness")["reward"]


@figures.styled
def rewards(runs: Sequence[dict]) -> figures.RecordFigure:
    """Draw the rewards after training against the staleness, with and without importance ratios."""
    seeds = len(_rewards(runs, ratios=True).get_group(0))
    caption = (
        f"points: median of {plural(seeds, 'seed')}; bars: lowest and highest; "
        f"breaks: fewer than {KEPT:.0%} of the right answers at staleness 0"
    )
    figure, axes = figures.new_figure("How old may the generators' weights be?", caption, size_inches=(12, 5.6))
    for number, ratios in enumerate((False, True)):
        groups = _rewards(runs, ratios)
        values = figures.over_repeats(groups)
        figures.draw_points(axes, list(groups.groups), values, label=_label(runs, ratios), **figures.style(number))
    axes.set_xscale("symlog", base=2, linthresh=1)
    figures.ticks_at(axes.xaxis, groups.groups)
    axes.set(ylim=(0, None), xlabel="staleness in steps", ylabel="share of right answers")
    return figure


def _label(runs: Sequence[dict], ratios: bool) -> str:
    name = "with clipped ratios" if ratios else "without ratios"
    staleness = breaks_at(runs, ratios)
    if math.isnan(staleness):
        return f"{name}: doesn't break"
    return f"{name}: breaks at staleness {staleness:g}"
