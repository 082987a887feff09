"""Figures of 01_mpi_basics: what ranks hold after collectives, and what a message costs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from workshop_lib.machine import catalogue
from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.figures import CENTERED, RecordFigure

GAP = 0.8  # between ranks, in cells
ROW = 1.35  # from one row to the next, in cells


@figures.styled
def collectives(before: list, after: list[dict[str, Any]]) -> RecordFigure:
    """Draw what each rank holds before and after several collectives, a row for each.

    before[rank]: the numbers of that rank. after[rank][name]: what it holds after this collective, numbers or None. A
    number has the color of the rank that held it before. An element-by-element sum over all ranks has stripes in their
    colors.
    """
    rows = {"before": before} | {name: [each[name] for each in after] for name in after[0]}
    ranks_of = _givers([_cells(held) for held in before])
    width = len(_cells(before[0])) + GAP
    figure, axes = figures.canvas((12, 0.6 + 0.5 * len(rows)))
    axes.set(xlim=(-5.5, len(before) * width), ylim=(ROW * len(rows), -1.2))
    for rank in range(len(before)):
        axes.text(rank * width + (width - GAP) / 2, -0.6, f"rank {rank}", weight="bold", **CENTERED)
    for row, (name, by_rank) in enumerate(rows.items()):
        axes.text(-0.4, row * ROW + 0.5, name, ha="right", va="center", weight="bold" if row == 0 else "normal")
        for rank, held in enumerate(by_rank):
            _draw_cells(axes, rank * width, row * ROW, _cells(held), ranks_of)
    return figure


def _draw_cells(axes: Axes, left: float, top: float, cells: list[int], ranks_of: dict[int, list[int]]) -> None:
    for at, value in enumerate(cells):
        givers = ranks_of[value]
        for stripe, rank in enumerate(givers):
            place = (left + at + stripe / len(givers), top)
            color = palette.TINTS[rank % len(palette.TINTS)]
            axes.add_patch(Rectangle(place, 1 / len(givers), 1, fc=color, ec="none"))
        axes.add_patch(Rectangle((left + at, top), 1, 1, fill=False, ec=palette.INK, lw=1.2))
        axes.text(left + at + 0.5, top + 0.5, str(value), **CENTERED)
    if not cells:
        axes.text(left + 0.5, top + 0.5, "nothing", color=palette.GRAY, va="center")


def _cells(held: Any) -> list[int]:
    return [] if held is None else [int(value) for value in np.atleast_1d(held)]


def _givers(before: list[list[int]]) -> dict[int, list[int]]:
    """The ranks whose colors each number gets: the only rank that held it, or all whose numbers add up to it."""
    givers = {sum(column): list(range(len(before))) for column in zip(*before, strict=True)}
    return givers | {value: [rank] for rank, cells in enumerate(before) for value in cells}


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
