"""Draw what each rank of a pipeline computes over time: every step that 11b_pipelines simulates or measures."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from workshop_lib.lessons.ddp.figures import AT_END, TIMELINE_LOOKS
from workshop_lib.lessons.pipelines.orders import Span, bubble
from workshop_lib.notebook.figures import old as figures

# Forwards are dark and backwards light, with one hue per chunk.
CHUNK_LOOKS = {
    "F": [figures.Look(figures.BLUE, ""), figures.Look(figures.GREEN, ""), figures.Look("#882255", "")],
    "B": [figures.Look("#9CC9E8", ""), figures.Look("#93D4BC", ""), figures.Look("#E8C5D8", "")],
}
IDLE = TIMELINE_LOOKS["waiting"]


def pipeline(panels: Mapping[str, Sequence[Sequence[Span]]], unit: str = "s") -> figures.RecordFigure:
    """Draw a pipeline's steps, one panel per title, on a common time axis, with one row per rank.

    Each bar is an operation and shows the number of its micro-batch. The text after a row says what share of the step
    the rank was idle.

    panels[title][rank]: the spans of that rank. unit: the unit of the spans' times; seconds are drawn as milliseconds.
    Raises InputError if there are no panels, or a panel has no ranks.
    """
    every = [span for ranks in panels.values() for spans in ranks for span in spans]
    scale, label = (1e3, "milliseconds since the step began") if unit == "s" else (1.0, f"time ({unit})")
    right = scale * max((span.end for span in every), default=0.0)
    chunks = 1 + max((span.chunk for span in every), default=0)
    looks: dict[str, figures.Look] = {}
    for chunk in range(chunks):
        of_chunk = f", chunk {chunk}" if chunks > 1 else ""
        looks |= {
            f"{name}{of_chunk}": CHUNK_LOOKS[kind][chunk % 3] for kind, name in (("F", "forward"), ("B", "backward"))
        }
    rows = {title: len(ranks) for title, ranks in panels.items()}
    handles = figures.patches({**looks, "idle: the bubble": IDLE})
    figure = figures.stacked(rows, label, handles, legend_columns=5)
    for axes, ranks in zip(figure.axes, panels.values(), strict=True):
        _operations(axes, ranks, scale, right)
    return figure


def _operations(axes: Axes, ranks: Sequence[Sequence[Span]], scale: float, right: float) -> None:
    start = min(span.start for spans in ranks for span in spans)
    end = max(span.end for spans in ranks for span in spans)
    for rank, spans in enumerate(ranks):
        figures.draw_bar(axes, rank, scale * start, scale * (end - start), IDLE)
        for span in spans:
            width = scale * (span.end - span.start)
            figures.draw_bar(axes, rank, scale * span.start, width, CHUNK_LOOKS[span.kind][span.chunk % 3])
            axes.vlines(scale * span.start, rank - 0.36, rank + 0.36, color="white", linewidth=1)
            if width > 0.012 * right:
                look = {"fontsize": figures.FONT_SIZE - 1, "color": "white" if span.kind == "F" else "black"}
                figures.number_bar(axes, rank, scale * span.start, width, str(span.micro_batch), **look, bbox=None)
        idle = 1 - sum(span.end - span.start for span in spans) / (end - start)
        axes.text(scale * end, rank, f"  idle {idle:.0%}", **AT_END)
    axes.set_title(f"{axes.get_title(loc='left')}: {bubble(ranks):.0%} idle", loc="left", fontsize=figures.FONT_SIZE)
    figures.name_rows(axes, (f"rank {rank}" for rank in range(len(ranks))))
    axes.set_xlim(0, 1.1 * right)
