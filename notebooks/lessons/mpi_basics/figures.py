"""Figures of 01_mpi_basics: a collective before and after, and what a message costs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from workshop_lib import ranks
from workshop_lib.machine import catalogue
from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.figures import CENTERED, RecordFigure

GAP = 0.35


def before_and_after(name: str) -> RecordFigure:
    """Draw what the notebook's ranks hold in their variables `before` and `after`; `name` is that of a collective."""
    team = ranks.current()
    return collective(name, team.pull("before"), team.pull("after"))


@figures.styled
def collective(name: str, before: list, after: list) -> RecordFigure:
    """Draw what each rank holds before and after a collective. An entry is one rank's value, list of values, or None.

    A cell has the color of the rank that held its value before. An element-by-element sum over all ranks' values has
    stripes in the colors of all these ranks. Any other cell stays white.
    """
    columns = [[_cells(held) for held in side] for side in (before, after)]
    ranks_of = _givers(columns[0])
    n = len(before)
    height = max(len(cells) for side in columns for cells in side)
    width = n * (1 + GAP) - GAP
    figure, axes = figures.canvas((min(2.4 + 2.1 * n, 16), 1.25 + 0.52 * height))
    middle = 1.9
    axes.set(xlim=(-0.1, 2 * width + middle + 0.1), ylim=(height + 0.15, -1.5))
    for left, title, side in ((0, "before", columns[0]), (width + middle, "after", columns[1])):
        axes.text(left + width / 2, -1.25, title, color=palette.GRAY, **CENTERED)
        for rank, cells in enumerate(side):
            x = left + rank * (1 + GAP)
            axes.text(x + 0.5, -0.4, f"rank {rank}", weight="bold", **CENTERED)
            for y, value in enumerate(cells):
                _stripes(axes, x, y, ranks_of.get(value, []))
                axes.add_patch(Rectangle((x, y), 1, 1, fill=False, ec=palette.INK, lw=1.2))
                axes.text(x + 0.5, y + 0.5, f"{value:g}" if isinstance(value, float) else str(value), **CENTERED)
            if not cells:
                axes.add_patch(Rectangle((x, 0), 1, 1, fill=False, ls=":", ec=palette.GRAY, lw=1))
    start = (width + 0.2, height / 2)
    end = (width + middle - 0.2, height / 2)
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=20, lw=2, color=palette.INK))
    axes.text(width + middle / 2, height / 2 - 0.25, name, ha="center", va="bottom")
    return figure


def _cells(held) -> list:
    if held is None:
        return []
    if isinstance(held, np.ndarray):
        held = held.tolist()
    return list(held) if isinstance(held, list | tuple) else [held]


def _givers(before: list[list]) -> dict[Any, list[int]]:
    """Return the ranks whose colors each value gets: the only rank that held it, or all whose values add up to it."""
    givers: dict[Any, list[int]] = {}
    holders = [rank for rank, cells in enumerate(before) if cells]
    for row in zip(*filter(None, before), strict=False):
        if len(holders) > 1 and all(isinstance(value, int | float) for value in row):
            givers[sum(row)] = holders
    held_by: dict[Any, set[int]] = {}
    for rank, cells in enumerate(before):
        for value in cells:
            held_by.setdefault(value, set()).add(rank)
    return givers | {value: list(ranks) for value, ranks in held_by.items() if len(ranks) == 1}


def _stripes(axes: Axes, x: float, y: float, ranks: list[int]) -> None:
    """Fill a cell with the colors of these ranks, or with white if there are none."""
    for at, rank in enumerate(ranks):
        look = {"fc": palette.TINTS[rank % len(palette.TINTS)], "ec": "none"}
        axes.add_patch(Rectangle((x + at / len(ranks), y), 1 / len(ranks), 1, **look))
    if not ranks:
        axes.add_patch(Rectangle((x, y), 1, 1, fc=palette.PAPER, ec="none"))


@figures.styled
def message_times(seconds: Mapping[int, float], alpha_s: float, beta_s_per_byte: float) -> RecordFigure:
    """Draw the time of one message against its size, beside the line α + β · bytes. seconds: the time by bytes."""
    figure, axes = figures.new_figure("One message between two ranks", "points are the fastest of 50 messages")
    nbytes = np.array(list(seconds))
    axes.plot(nbytes, [1e6 * each for each in seconds.values()], linestyle="", label="measured")
    axes.plot(nbytes, 1e6 * (alpha_s + beta_s_per_byte * nbytes), marker="", label="α + β · bytes")
    axes.set(xlabel="message (bytes)", ylabel="time (µs)", xscale="log", yscale="log")
    return figure


@figures.styled
def allreduces(
    through_rank_0: Mapping[int, float], ring: Mapping[int, float], ranks: int, machine: str
) -> RecordFigure:
    """Draw two allreduces of emulated ranks against the array's size, beside their formulas. Seconds by bytes."""
    link = catalogue.emulated_machine(machine).between
    nbytes = np.array(list(ring))
    beta_s = link.s_per_byte * nbytes
    formulas = {
        "through rank 0": (through_rank_0, 2 * link.latency_s + 2 * (ranks - 1) * beta_s),
        "your ring": (ring, 2 * (ranks - 1) * (link.latency_s + beta_s / ranks)),
    }
    text = f"Points are emulated on {catalogue.label(machine)}, and lines are the formulas. None was measured."
    figure, axes = figures.new_figure(f"One allreduce of {ranks} ranks", text)
    for number, (title, (seconds, formula_s)) in enumerate(formulas.items()):
        look = figures.style(number)
        axes.plot(nbytes, [1e3 * each for each in seconds.values()], **{**look, "linestyle": ""}, label=title)
        axes.plot(nbytes, 1e3 * formula_s, **{**look, "marker": ""}, label=f"{title}, formula")
    axes.set(xlabel="array (bytes)", ylabel="milliseconds", xscale="log", yscale="log")
    return figure
