"""Draw what each rank of a pipeline computes over time: every step that 11b_pipelines draws."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from workshop_lib.notebook import figures, palette

from lessons.ddp.figures import TIMELINE_LOOKS, milliseconds
from lessons.pipelines import orders
from lessons.pipelines.orders import Span, bubble

# Forwards are dark and backwards light, with one hue per chunk.
CHUNK_LOOKS = {
    "F": [figures.Look(color, "") for color in (palette.BLUE, palette.GREEN, palette.COLORS[7])],
    "B": [figures.Look(tint, "") for tint in (palette.TINTS[0], palette.TINTS[2], palette.TINTS[3])],
}
NAMES = {"F": "forward", "B": "backward"}
IDLE = TIMELINE_LOOKS["waiting"]


@figures.styled
def pipeline(
    panels: Mapping[str, Sequence[Sequence[Span]]], emulated_on: str = "", on_paper: bool = False
) -> figures.RecordFigure:
    """Draw a pipeline's steps, one panel per title, on a common time axis, with one row per rank.

    Each bar is an operation and shows the number of its micro-batch. The text after a row says what share of the step
    the rank was idle.

    panels[title][rank]: the spans of that rank. emulated_on: the machine whose times they are, if they weren't
    measured. on_paper: whether times are in forward passes, and not in seconds.
    Raises InputError if there are no panels, or a panel has no ranks.
    """
    every_span = [span for ranks in panels.values() for spans in ranks for span in spans]
    label = "time, in forward passes" if on_paper else milliseconds("since the step began", emulated_on)
    scale = 1.0 if on_paper else 1e3
    right = scale * max((span.end for span in every_span), default=0.0)
    chunks = 1 + max((span.chunk for span in every_span), default=0)
    rows = {title: len(ranks) for title, ranks in panels.items()}
    figure, every = figures.stacked(rows, label)
    for axes, ranks in zip(every, panels.values(), strict=True):
        _operations(axes, ranks, scale, right, chunks)
        axes.set_xlim(0, 1.1 * right)
    return figure


def example(*names: str, ranks: int, micro_batches: int) -> figures.RecordFigure:
    """Draw each of these schedules, "GPipe" and "1F1B", on paper: the picture of what the learner writes."""
    schedules = {"GPipe": orders.gpipe, "1F1B": orders.one_f_one_b}
    panels = {}
    for name in names:
        of_ranks = [schedules[name](rank, ranks, micro_batches) for rank in range(ranks)]
        panels[f"{name}, on paper"] = orders.on_paper(of_ranks).spans
    return pipeline(panels, on_paper=True)


def _operations(axes: Axes, ranks: Sequence[Sequence[Span]], scale: float, right: float, chunks: int) -> None:
    start = min(span.start for spans in ranks for span in spans)
    end = max(span.end for spans in ranks for span in spans)
    for rank, spans in enumerate(ranks):
        figures.draw_bar(axes, rank, scale * start, scale * (end - start), IDLE, label="idle: the bubble")
        for span in spans:
            left, width = scale * span.start, scale * (span.end - span.start)
            name = NAMES[span.kind] if chunks == 1 else f"{NAMES[span.kind]}, chunk {span.chunk}"
            figures.draw_bar(axes, rank, left, width, CHUNK_LOOKS[span.kind][span.chunk % 3], label=name)
            axes.vlines(left, rank - 0.36, rank + 0.36, color=palette.PAPER, linewidth=1)
            if width > 0.012 * right:
                color = palette.PAPER if span.kind == "F" else palette.INK
                figures.number_bar(axes, rank, left, width, str(span.micro_batch), color=color, bbox=None)
        idle = 1 - sum(span.end - span.start for span in spans) / (end - start)
        figures.write_beside(axes, scale * end, rank, f"idle {idle:.0%}", weight="bold")
    axes.set_title(f"{axes.get_title(loc='left')}: {bubble(ranks):.0%} idle")
    figures.name_rows(axes, (f"rank {rank}" for rank in range(len(ranks))))
