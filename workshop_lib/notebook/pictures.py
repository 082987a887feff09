"""Who holds what before and after a collective, drawn from what the ranks really hold."""

import numpy as np
from matplotlib.patches import FancyArrowPatch, Rectangle

from workshop_lib.notebook.figures import FONT_SIZE, GREY, RecordFigure

# Light enough for black text; Okabe and Ito's hues. A cell's text tells the rank as well, in a grey print.
TINTS = ["#9CC9E8", "#F3BE94", "#93D4BC", "#E8C5D8", "#BFE0F6", "#F5D58A", "#CFCFCF", "#F7F1A6"]
GAP = 0.35


def collective(name: str, before: list, after: list) -> RecordFigure:
    """Draw `before` and `after`: for each rank, by rank, what it holds: a value, a list of values, or None.

    A cell has the colour of the rank that held its value before. A sum over all ranks' values (element by
    element) has stripes in the colours of all of them; anything else stays white.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} ranks before, but {len(after)} after: give one entry a rank")
    columns = [[_cells(held) for held in side] for side in (before, after)]
    paint = _Paint(columns[0])
    n, height = len(before), max(len(cells) for side in columns for cells in side)
    width = n * (1 + GAP) - GAP
    figure = RecordFigure(figsize=(min(2.4 + 2.1 * n, 16), 1.25 + 0.52 * height), facecolor="white")
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    middle = 1.9
    axes.set(xlim=(-0.1, 2 * width + middle + 0.1), ylim=(height + 0.15, -1.5))
    axes.axis("off")
    for left, title, side in ((0, "before", columns[0]), (width + middle, "after", columns[1])):
        axes.text(left + width / 2, -1.25, title, ha="center", va="center", fontsize=FONT_SIZE, color=GREY)
        for rank, cells in enumerate(side):
            x = left + rank * (1 + GAP)
            axes.text(x + 0.5, -0.4, f"rank {rank}", ha="center", va="center", fontsize=FONT_SIZE, weight="bold")
            for y in range(height):
                if y < len(cells):
                    paint.cell(axes, x, y, cells[y])
                elif not cells and y == 0:
                    axes.add_patch(Rectangle((x, y), 1, 1, fill=False, ls=":", ec=GREY, lw=1))
    start, end = (width + 0.2, height / 2), (width + middle - 0.2, height / 2)
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=20, lw=2, color="black"))
    axes.text(width + middle / 2, height / 2 - 0.25, name, ha="center", va="bottom", fontsize=FONT_SIZE)
    return figure


def _cells(held) -> list:
    if held is None:
        return []
    if isinstance(held, np.ndarray):
        held = held.tolist()
    return list(held) if isinstance(held, list | tuple) else [held]


class _Paint:
    """The colour of a value, from who held it at first."""

    def __init__(self, before: list[list]):
        self.holders: dict = {}
        for rank, cells in enumerate(before):
            for value in cells:
                self.holders.setdefault(value, set()).add(rank)
        self.sums = {}
        givers = [(rank, cells) for rank, cells in enumerate(before) if cells]
        for row in zip(*(cells for _, cells in givers), strict=False):
            if len(givers) > 1 and all(isinstance(value, int | float) for value in row):
                self.sums[sum(row)] = [rank for rank, _ in givers]

    def ranks_of(self, value) -> list[int]:
        """The ranks whose colours a cell with this value gets."""
        holders = self.holders.get(value, set())
        return sorted(holders) if len(holders) == 1 else self.sums.get(value, [])

    def cell(self, axes, x: float, y: float, value) -> None:
        colours = [TINTS[rank % len(TINTS)] for rank in self.ranks_of(value)] or ["white"]
        for at, colour in enumerate(colours):
            stripe = 1 / len(colours)
            axes.add_patch(Rectangle((x + at * stripe, y), stripe, 1, fc=colour, ec="none"))
        axes.add_patch(Rectangle((x, y), 1, 1, fill=False, ec="black", lw=1.2))
        text = f"{value:g}" if isinstance(value, float) else str(value)
        axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=FONT_SIZE)
