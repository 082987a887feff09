"""Figures of 02_synchronous_sgd: the gradients of ranks and their mean, and what a training step is made of."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from workshop_lib.notebook import figures


@figures.styled
def threes(gradients: Sequence[np.ndarray], mean: np.ndarray) -> figures.RecordFigure:
    """Draw the part of each gradient [784, 10] that belongs to the digit 3, as an image of 28 × 28 pixels."""
    titles = [f"rank {rank}" for rank in range(len(gradients))] + ["mean"]
    figure, every = figures.canvas((2.2 * len(titles), 2.4), columns=len(titles))
    for axes, title, gradient in zip(every, titles, [*gradients, mean], strict=True):
        axes.imshow(gradient[:, 3].reshape(28, 28), cmap="RdBu", vmin=-0.1, vmax=0.1)
        axes.set_title(title)
    return figure


@figures.styled
def step_times(panels: Mapping[str, Sequence[np.ndarray]]) -> figures.RecordFigure:
    """Draw the step of median length per panel: a bar per rank, with the parts of the step one after the other.

    panels[title][rank]: the milliseconds of each part in figures.STEP_LOOKS, for each step: [steps, 3]. All panels have
    the same time axis. Raises InputError if there is nothing to draw.
    """
    drawn = {title: _typical(of_ranks) for title, of_ranks in panels.items()}
    longest = max((sum(parts.values()) for ranks in drawn.values() for parts in ranks), default=0.0)
    rows = {title: len(ranks) for title, ranks in drawn.items()}
    figure, every = figures.stacked(rows, "milliseconds")
    for axes, ranks in zip(every, drawn.values(), strict=True):
        _parts(axes, ranks, longest)
    return figure


def _typical(of_ranks: Sequence[np.ndarray]) -> list[dict[str, float]]:
    """The parts of the step of median length, by rank.

    It is one real step, because medians of the parts would end at different times on ranks that are in step.
    """
    every = np.array(of_ranks)
    lengths_ms = every.sum(axis=2).max(axis=0)
    step = np.argsort(lengths_ms)[len(lengths_ms) // 2]
    return [dict(zip(figures.STEP_LOOKS, parts, strict=True)) for parts in every[:, step]]


def _parts(axes: Axes, ranks: Sequence[Mapping[str, float]], longest: float) -> None:
    for rank, parts in enumerate(ranks):
        left = 0.0
        for kind, look in figures.STEP_LOOKS.items():
            width = parts[kind]
            figures.draw_bar(axes, rank, left, width, look, label=kind)
            if width > figures.ROOM * longest:
                figures.number_bar(axes, rank, left, width, f"{width:.1f}")
            left += width
    figures.name_rows(axes, (f"rank {rank}" for rank in range(len(ranks))))
    axes.set_xlim(0, 1.02 * longest)
