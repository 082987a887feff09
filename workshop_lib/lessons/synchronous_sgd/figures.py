"""What a training step is made of, as bars over time."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from workshop_lib.notebook import figures


def step_times(panels: Mapping[str, Sequence[Mapping[str, float]]]) -> figures.RecordFigure:
    """Draw one step of each panel, by title, on a common axis: a bar per rank, one part after the other.

    A panel has one entry per rank, the milliseconds of each of STEP_LOOKS. Raises InputError when there is
    nothing to draw.
    """
    longest = max((sum(parts.values()) for ranks in panels.values() for parts in ranks), default=0.0)
    rows = {title: len(ranks) for title, ranks in panels.items()}
    figure = figures.stacked(rows, "milliseconds per step", figures.patches(figures.STEP_LOOKS))
    for axes, ranks in zip(figure.axes, panels.values(), strict=True):
        _parts(axes, ranks, longest)
    return figure


def _parts(axes: Axes, ranks: Sequence[Mapping[str, float]], longest: float) -> None:
    for rank, parts in enumerate(ranks):
        left = 0.0
        for kind, look in figures.STEP_LOOKS.items():
            width = parts[kind]
            figures.draw_bar(axes, rank, left, width, look)
            if width > figures.ROOM * longest:
                figures.number_bar(axes, rank, left, width, f"{width:.1f}")
            left += width
    figures.name_rows(axes, (f"rank {rank}" for rank in range(len(ranks))))
    axes.set_xlim(0, 1.02 * longest)
