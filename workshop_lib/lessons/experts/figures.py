"""Figures of 11d_experts: what an exchange moves, and how a router spreads its tokens during training."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.figures import CENTERED, SMALL, RecordFigure

LINES = ("-", "--", ":", "-.")
COLUMNS = {"busiest expert's share": "{:.0%}", "dropped": "{:.0%}", "loss": "{:.2f}"}


@figures.styled
def an_exchange(ranks: int = 2, experts: int = 4, capacity: int = 3) -> RecordFigure:
    """Draw each rank's places before and after an exchange. A place has the color of the rank whose token it is for."""
    figure, panels = figures.canvas((6.4 * 2, 1.5 + 1.5 * ranks), columns=2)
    titles = ("before: the places that a rank fills", "after: the places that its experts get")
    for axes, title, after in zip(panels, titles, (False, True), strict=True):
        axes.set(xlim=(-1.6, experts * (capacity + 0.6)), ylim=(2 * ranks - 0.3, -0.7))
        axes.set_title(title)
        for rank in range(ranks):
            axes.text(-0.3, 2 * rank + 0.5, f"rank {rank}", ha="right", va="center")
            _places(axes, rank, ranks, experts, capacity, after)
    return figure


def _places(axes: Axes, rank: int, ranks: int, experts: int, capacity: int, after: bool) -> None:
    """Draw one rank's places, a group for each expert, or after an exchange for each expert and sender."""
    local = experts // ranks
    for group in range(experts):
        sender = group // local if after else rank
        expert = rank * local + group % local if after else group
        left = group * (capacity + 0.6)
        for place in range(capacity):
            box = Rectangle((left + place, 2 * rank), 1, 1, fc=palette.TINTS[sender], ec=palette.INK, lw=1)
            axes.add_patch(box)
            axes.text(left + place + 0.5, 2 * rank + 0.5, str(place), fontsize=SMALL, **CENTERED)
        axes.text(left + capacity / 2, 2 * rank - 0.3, f"for expert {expert}", fontsize=SMALL, **CENTERED)


@figures.styled
def busiest(runs: Mapping[str, Sequence[Sequence[Sequence[float]]]], experts: int = 8) -> RecordFigure:
    """Draw the busiest expert's share of all choices by step, a panel for each title and a line for each run.

    runs[title][run][step]: the share, from 0 to 1, and whatever follows it.
    """
    figure, panels = figures.panels("", "", runs, "step", "busiest expert's share")
    for axes, of_seeds in zip(panels, runs.values(), strict=True):
        for seed, history in enumerate(of_seeds, 1):
            color, style = palette.COLORS[seed - 1], LINES[seed - 1]
            shares = [step[0] for step in history]
            axes.plot(np.arange(1, len(shares) + 1), shares, style, color=color, marker="", label=f"seed {seed}")
        axes.axhline(1 / experts, **figures.LEVEL, label="even shares")
        axes.set_ylim(0, 1.02)
    return figure


def last_steps(runs: Mapping[str, Sequence[Sequence[Sequence[float]]]], steps: int = 20) -> "LastSteps":
    """A table of the means over the last steps of each run. Each step has three numbers: see COLUMNS."""
    rows = {}
    for title, of_seeds in runs.items():
        for seed, history in enumerate(of_seeds, 1):
            rows[title, seed] = np.mean(history[-steps:], axis=0)
    table = LastSteps.from_dict(rows, orient="index", columns=list(COLUMNS))
    table.index = pd.MultiIndex.from_tuples(table.index, names=["", "seed"])
    return table


class LastSteps(pd.DataFrame):
    """A table that shows shares as percentages."""

    def _repr_html_(self) -> str:
        return self.style.format(COLUMNS)._repr_html_()
