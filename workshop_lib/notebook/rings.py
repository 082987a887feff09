"""The ring allreduce as a picture: which rank holds whose part of which chunk after each step."""

from matplotlib.patches import FancyArrowPatch, Rectangle

from workshop_lib.notebook.figures import FONT_SIZE, GREY, RecordFigure
from workshop_lib.notebook.pictures import TINTS

PHASES = "reduce-scatter: add what arrives", "allgather: keep what arrives"


def ring(p: int = 4) -> RecordFigure:
    """Draw the steps of a ring allreduce of `p` ranks, one panel for the start and one for each step.

    A column is a rank, a row a chunk. A cell lists the ranks whose values are summed in it, and has their
    colours; a thick frame and an arrow mark what has just arrived. Raises ValueError unless p is 2 to 5.
    """
    if not 2 <= p <= 5:
        raise ValueError(f"a ring of {p} ranks cannot be drawn readably; use 2 to 5")
    figure = RecordFigure(figsize=(0.72 * p * (p + 0.55) + 0.2, 1.2 * p + 2.1), facecolor="white")
    panels = figure.subplots(2, p)
    held = [[{rank} for rank in range(p)] for _ in range(p)]  # [chunk][rank]
    _panel(panels[0, 0], "start", held, [])
    panels[1, 0].axis("off")
    for step in range(1, 2 * p - 1):
        # Chunk c has come from rank c, a rank a step, and meets each rank's part of the sum on its way.
        moves = [(chunk, (chunk + step - 1) % p, (chunk + step) % p) for chunk in range(p)]
        for chunk, source, dest in moves:
            adds = step < p
            held[chunk][dest] = held[chunk][source] | (held[chunk][dest] if adds else set())
        row, column = (0, step) if step < p else (1, step - p + 1)
        _panel(panels[row, column], f"step {step}", held, moves)
    figure.subplots_adjust(left=0.045, right=0.995, top=0.85, bottom=0.03, hspace=0.62, wspace=0.1)
    for panel, text in zip(panels[:, 1], PHASES, strict=True):
        panel.annotate(
            text, (0, 1), (0, 46), xycoords="axes fraction", textcoords="offset points",
            fontsize=FONT_SIZE, color=GREY, annotation_clip=False,
        )  # fmt: skip
    return figure


def _panel(axes, title: str, held: list[list[set]], moves: list[tuple[int, int, int]]) -> None:
    p = len(held)
    axes.set(xlim=(-0.25, p + 0.08), ylim=(p + 0.08, -0.08), aspect="auto")
    axes.set_title(title, fontsize=FONT_SIZE, weight="bold", pad=22)
    axes.axis("off")
    arrived = {(chunk, dest) for chunk, _, dest in moves}
    for rank in range(p):
        axes.text(rank + 0.5, -0.12, f"rank {rank}", ha="center", va="bottom", fontsize=FONT_SIZE - 4)
    for chunk in range(p):
        if title == "start":
            axes.text(-0.1, chunk + 0.5, f"chunk {chunk}", ha="right", va="center", fontsize=FONT_SIZE - 4)
        for rank in range(p):
            givers = sorted(held[chunk][rank])
            text = "all" if len(givers) == p else "+".join(map(str, givers))
            _cell(axes, rank, chunk, givers, text, (chunk, rank) in arrived)
    for chunk, _, dest in moves:  # into rank 0 the arrow comes from outside: the last rank is its neighbour
        ends = (dest - 0.2, chunk + 0.18), (dest + 0.22, chunk + 0.18)
        axes.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=10, lw=1.4, zorder=4))


def _cell(axes, rank: int, chunk: int, givers: list[int], text: str, arrived: bool) -> None:
    stripe = 1 / len(givers)
    for at, giver in enumerate(givers):
        axes.add_patch(Rectangle((rank + at * stripe, chunk), stripe, 1, fc=TINTS[giver], ec="none"))
    width = 2.6 if arrived else 0.8
    frame = Rectangle((rank, chunk), 1, 1, fill=False, ec="black", lw=width, zorder=3 if arrived else 2)
    axes.add_patch(frame)
    axes.text(rank + 0.5, chunk + 0.6, text, ha="center", va="center", fontsize=FONT_SIZE - 3)
