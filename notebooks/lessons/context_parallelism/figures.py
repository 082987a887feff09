"""Figures of 11c_context_parallelism: when a rank of a ring waits, and who computes which scores of a causal mask."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Polygon, Rectangle
from torch import Tensor

from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.figures import SMALL, RecordFigure

from lessons.context_parallelism.emulated import RingRun
from lessons.ddp.figures import TIMELINE_LOOKS

COMPUTING = figures.STEP_LOOKS["computing"]
IDLE = TIMELINE_LOOKS["waiting"]


@figures.styled
def overlap(runs: Mapping[str, Mapping[str, RingRun]]) -> RecordFigure:
    """Draw when a rank computes and when it waits for a block, one panel per length, and one bar per ring.

    runs[title][ring]: what an emulated rank did. The unit is the time of its first block, so all panels can share an
    axis.
    """
    figure, panels = figures.stacked(
        {title: len(rings) for title, rings in runs.items()}, "emulated time, in multiples of computing with one block"
    )
    longest = 0.0
    for axes, (title, rings) in zip(panels, runs.items(), strict=True):
        for row, ring in enumerate(rings.values()):
            unit_ms = ring.computing[0][1] - ring.computing[0][0]
            figures.draw_bar(axes, row, 0, ring.end_ms / unit_ms, IDLE, label="waits for the next block")
            for step, (begin, end) in enumerate(ring.computing):
                width = (end - begin) / unit_ms
                figures.draw_bar(axes, row, begin / unit_ms, width, COMPUTING, label="computes with a block")
                figures.number_bar(axes, row, begin / unit_ms, width, str(step), color=palette.PAPER, bbox=None)
                axes.vlines(begin / unit_ms, row - 0.36, row + 0.36, color=palette.PAPER, linewidth=1)
            text = f"{ring.end_ms:.2f} ms, waits {max(0, ring.waits):.0%}"
            figures.write_beside(axes, ring.end_ms / unit_ms, row, text, weight="bold")
            longest = max(longest, ring.end_ms / unit_ms)
        axes.set_title(title)
        figures.name_rows(axes, rings)
    for axes in panels:
        axes.set_xlim(0, 1.25 * longest)
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
def busy(counted: Mapping[str, Sequence[float]], unit: str) -> RecordFigure:
    """Draw how much each rank computed, and how long it then waited for the busiest one, one panel per order.

    counted[title][r]: the work of rank r. unit: what was counted.
    """
    longest = max(max(each) for each in counted.values())
    figure, panels = figures.stacked({title: len(each) for title, each in counted.items()}, unit)
    for axes, (title, of_ranks) in zip(panels, counted.items(), strict=True):
        most = max(of_ranks)
        for rank, computed in enumerate(of_ranks):
            figures.draw_bar(axes, rank, 0, computed, COMPUTING, label="computing")
            figures.draw_bar(axes, rank, computed, most - computed, IDLE, label="idle, until the busiest rank is done")
            figures.write_beside(axes, most, rank, f"idle {1 - computed / most:.0%}")
        axes.set_title(f"{title}: {idle(of_ranks):.1%} idle")
        axes.set_xlim(0, 1.12 * longest)
        figures.name_rows(axes, (f"rank {rank}" for rank in range(len(of_ranks))))
    return figure


def idle(of_ranks: Sequence[float]) -> float:
    """The share of the ranks' time that they wait for the busiest one, from what each of them computed."""
    return 1 - float(np.mean(of_ranks)) / max(of_ranks)
