"""Draw what a training step is made of: 02_synchronous_sgd shows how long ranks compute, wait and communicate."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from workshop_lib.notebook import figures


def medians(spent_ms: Sequence[np.ndarray]) -> list[dict[str, float]]:
    """What each rank spends a step on, from the milliseconds of its steps [steps, 3]: the median of each part."""
    kinds = ("computing", "waiting", "Allreduce")
    return [dict(zip(kinds, np.median(of_rank, axis=0), strict=True)) for of_rank in spent_ms]


@figures.styled
def step_times(panels: Mapping[str, Sequence[Mapping[str, float]]]) -> figures.RecordFigure:
    """Draw one step per panel on a common time axis: a bar per rank, with the parts of the step one after the other.

    panels[title][rank]: the milliseconds of each part in figures.STEP_LOOKS. Raises InputError if there is nothing to
    draw.
    """
    longest = max((sum(parts.values()) for ranks in panels.values() for parts in ranks), default=0.0)
    rows = {title: len(ranks) for title, ranks in panels.items()}
    figure, every = figures.stacked(rows, "milliseconds per step")
    for axes, ranks in zip(every, panels.values(), strict=True):
        _parts(axes, ranks, longest)
    return figure


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
