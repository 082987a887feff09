"""Figures of 11d_experts: how a router spreads its tokens during training."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.figures import RecordFigure

LINES = ("-", "--", ":", "-.")
COLUMNS = {
    "MLP weights": "{:,}",
    "operations per token": "{:,.0f}",
    "busiest expert's share": "{:.0%}",
    "dropped": "{:.0%}",
    "loss": "{:.2f}",
    "lowest": "{:.2f}",
    "highest": "{:.2f}",
}


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


def last_steps(runs: Mapping[str, Sequence[Sequence[Sequence[float]]]], steps: int = 50) -> pd.DataFrame:
    """A row for each title: means over the last steps and all seeds, and the seeds' lowest and highest loss.

    runs[title][seed][step]: the busiest expert's share of all choices, the share that was dropped, and the loss.
    """
    rows = {}
    for title, of_seeds in runs.items():
        shares, dropped, losses = np.mean([history[-steps:] for history in of_seeds], axis=1).T
        rows[title] = [shares.mean(), dropped.mean(), losses.mean(), losses.min(), losses.max()]
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS)[2:])
