"""Figures of 11c_context_parallelism: the overlap in a ring, and who computes which scores of a causal mask."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Polygon, Rectangle
from torch import Tensor

from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.figures import SMALL, RecordFigure

from lessons.ddp.figures import TIMELINE_LOOKS

COMPUTING = figures.STEP_LOOKS["computing"]
SENDING = figures.Look(palette.GREEN, "||")
IDLE = TIMELINE_LOOKS["waiting"]


@figures.styled
def overlap(compute_ms: float, send_ms: float, steps: int) -> RecordFigure:
    """Draw one rank's ring in two ways: it waits for each block, or receives the next one while it computes.

    compute_ms: the attention to one block. send_ms: one block on its way. steps: how many blocks the rank sees.
    """
    rows = {"send, then compute": 2, "send while computing": 2}
    figure, panels = figures.stacked(rows, "milliseconds")
    ends = []
    for axes, together in zip(panels, (False, True), strict=True):
        at = 0.0
        for step in range(steps):
            figures.draw_bar(axes, 0, at, compute_ms, COMPUTING, label="computes with a block")
            figures.number_bar(axes, 0, at, compute_ms, str(step), color=palette.PAPER, bbox=None)
            if step < steps - 1:
                start = at if together else at + compute_ms
                figures.draw_bar(axes, 1, start, send_ms, SENDING, label="the next block is on its way")
                at = max(at + compute_ms, start + send_ms)
            else:
                at += compute_ms
            axes.vlines(at, -0.36, 0.36, color=palette.PAPER, linewidth=1)
        figures.write_beside(axes, at, 0, f"{at:.1f} ms", weight="bold")
        figures.name_rows(axes, ("attention", "network"))
        ends.append(at)
    for axes in panels:
        axes.set_xlim(0, 1.12 * max(ends))
    return figure


@figures.styled
def who_computes(orders: Mapping[str, Callable[[int, int, int], Tensor]], ranks: int) -> RecordFigure:
    """Draw which rank computes which scores under a causal mask, in one panel per order of the tokens.

    orders[title](tokens, rank, ranks): the positions of a rank's tokens. The scores below the diagonal are needed.
    """
    figure, grid = figures.canvas((5.2 * len(orders), 5.2), columns=len(orders))
    tokens = 16 * ranks
    for axes, (title, order) in zip(np.atleast_1d(grid), orders.items(), strict=True):
        _triangle(axes, [order(tokens, rank, ranks) for rank in range(ranks)], tokens)
        axes.set_title(title)
    return figure


def _triangle(axes: Axes, positions: Sequence[Tensor], tokens: int) -> None:
    """Draw the queries' rows as far as each of them sees keys, in the colors of the ranks that have them."""
    axes.set(xlim=(-0.22 * tokens, tokens), ylim=(tokens, -0.09 * tokens), aspect="equal")
    axes.text(0.5 * tokens, -0.02 * tokens, "keys", ha="center", va="bottom", color=palette.GRAY)
    axes.add_patch(Rectangle((0, 0), tokens, tokens, fc="none", ec=palette.GRAY, lw=1))
    for rank, mine in enumerate(positions):
        starts = [at for at in mine.tolist() if at - 1 not in mine.tolist()]
        for start in starts:
            end = start
            while end in mine.tolist():
                end += 1
            corners = [(0, start), (start, start), (end, end), (0, end)]
            axes.add_patch(Polygon(corners, fc=palette.TINTS[rank], ec=palette.INK, lw=1))
            axes.text(-0.02 * tokens, (start + end) / 2, f"rank {rank}", ha="right", va="center", fontsize=SMALL)


@figures.styled
def busy(measured: Mapping[str, Sequence[float]], unit: str) -> RecordFigure:
    """Draw how much each rank computed, and how long it then waited for the busiest one, one panel per order.

    measured[title][r]: seconds or scores of rank r. unit: what they are.
    """
    longest = max(max(each) for each in measured.values())
    figure, panels = figures.stacked({title: len(each) for title, each in measured.items()}, unit)
    for axes, (title, of_ranks) in zip(panels, measured.items(), strict=True):
        most = max(of_ranks)
        for rank, computed in enumerate(of_ranks):
            figures.draw_bar(axes, rank, 0, computed, COMPUTING, label="computing")
            figures.draw_bar(axes, rank, computed, most - computed, IDLE, label="idle, until the busiest rank is done")
            figures.write_beside(axes, most, rank, f"idle {1 - computed / most:.0%}")
        axes.set_title(f"{title}: {idle(of_ranks):.0%} idle")
        axes.set_xlim(0, 1.12 * longest)
        figures.name_rows(axes, (f"rank {rank}" for rank in range(len(of_ranks))))
    return figure


def idle(of_ranks: Sequence[float]) -> float:
    """The share of the ranks' time that they wait for the busiest one, from what each of them computed."""
    return 1 - float(np.mean(of_ranks)) / max(of_ranks)
