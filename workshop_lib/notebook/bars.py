"""What one training step is spent on: a bar for each rank, one part after the other.

Colours and stripes are those of the strip on the dashboard (charts.py).
"""

from collections.abc import Callable
from functools import partial

from matplotlib.patches import Patch

from workshop_lib.notebook.figures import FONT_SIZE, RecordFigure

LOOKS = {"computing": ("#0072B2", ""), "waiting": ("#E69F00", "//"), "Allreduce": ("#009E73", "||")}
ROOM = 0.09  # of the axis: a narrower part has no room for its number


def step_times(panels: dict[str, list[dict[str, float]]]) -> RecordFigure:
    """Draw one step of each panel, by title, on a common axis, so that their lengths can be compared.

    A panel has one entry a rank: the milliseconds of each of LOOKS, in this order. Raises ValueError when
    there is nothing to draw.
    """
    if not panels or not all(panels.values()):
        raise ValueError("give at least one panel, and in each the times of at least one rank")
    longest = max(sum(of_rank.values()) for of_ranks in panels.values() for of_rank in of_ranks)
    parts = {
        title: (len(of_ranks), partial(_panel, of_ranks=of_ranks, longest=longest))
        for title, of_ranks in panels.items()
    }
    return stacked(parts, "milliseconds a step", patches(LOOKS))


def patches(looks: dict[str, tuple[str, str]]) -> list[Patch]:
    """The legend entries of these kinds, each a colour and stripes."""
    return [Patch(fc=colour, hatch=hatch, ec="white", label=kind) for kind, (colour, hatch) in looks.items()]


def stacked(panels: dict[str, tuple[int, Callable]], x_label: str, handles: list) -> RecordFigure:
    """Panels under one another, by title: how many ranks each has, and what draws them into its axes, rank r
    at the height r."""
    heights = [ranks for ranks, _ in panels.values()]
    tall = 1.5 + 0.75 * len(panels) + 0.5 * sum(heights)
    figure = RecordFigure(figsize=(12, tall), facecolor="white")
    grid = figure.add_gridspec(len(panels), 1, height_ratios=heights)
    for at, (title, (ranks, draw)) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[at])
        draw(axes)
        axes.set_title(title, loc="left", fontsize=FONT_SIZE, weight="bold")
        axes.set_ylim(ranks - 0.5, -0.5)
        axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axes.tick_params(labelsize=FONT_SIZE - 1)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel(x_label, fontsize=FONT_SIZE)
    space = 0.75 * len(panels) / sum(heights)
    figure.subplots_adjust(left=0.08, right=0.98, top=1 - 0.45 / tall, bottom=1.2 / tall, hspace=2.2 * space)
    columns = {"loc": "lower center", "ncols": len(handles)}
    figure.legend(handles=handles, **columns, frameon=False, fontsize=FONT_SIZE - 1)
    return figure


def _panel(axes, of_ranks: list[dict[str, float]], longest: float) -> None:
    for rank, times in enumerate(of_ranks):
        left = 0.0
        for kind, (colour, hatch) in LOOKS.items():
            width = times[kind]
            axes.barh(rank, width, 0.72, left=left, color=colour, hatch=hatch, edgecolor="white", lw=0)
            if width > ROOM * longest:
                axes.text(
                    left + width / 2, rank, f"{width:.1f}", ha="center", va="center", fontsize=FONT_SIZE,
                    bbox={"fc": "white", "ec": "none", "pad": 1.5},
                )  # fmt: skip
            left += width
    axes.set_xlim(0, 1.02 * longest)
    axes.grid(axis="x", color="#D9D9D9", linewidth=0.8)
    axes.set_axisbelow(True)
