"""Draw what old weights cost the trainer of 07f_trainer_and_generators."""

import math
from collections.abc import Sequence

import pandas as pd

from workshop_lib.notebook import figures
from workshop_lib.words import plural

KEPT = 0.8  # share of the reward at staleness 0 below which a training run counts as broken


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
    """Draw the rewards after training against the staleness, without importance ratios, with them, or both."""
    kinds = sorted({run["ratios"] for run in runs})
    seeds = len(_rewards(runs, kinds[0]).get_group(0))
    caption = (
        f"points: median of {plural(seeds, 'seed')}; bars: lowest and highest; "
        f"breaks: fewer than {KEPT:.0%} of the right answers at staleness 0"
    )
    figure, axes = figures.new_figure("How old may the generators' weights be?", caption, size_inches=(12, 5.6))
    for number, ratios in enumerate(kinds):
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
