"""Pictures of who holds what: a collective, a ring allreduce, the ways to split training, ZeRO's parts."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from workshop_lib.errors import InputError
from workshop_lib.notebook.figures import FONT_SIZE, GREY, RecordFigure, patches
from workshop_lib.notebook.figures.forecasts import MEMORY_LOOKS
from workshop_lib.training import KINDS

# Light enough for black text; Okabe and Ito's hues. A cell's text tells the rank as well, in a grey print.
TINTS = ["#9CC9E8", "#F3BE94", "#93D4BC", "#E8C5D8", "#BFE0F6", "#F5D58A", "#CFCFCF", "#F7F1A6"]
CENTRED = {"ha": "center", "va": "center", "fontsize": FONT_SIZE}
GAP = 0.35
PHASES = "reduce-scatter: add what arrives", "allgather: keep what arrives"
LAYERS = 4


class Split(NamedTuple):
    """A way to split training: who does it, its messages, and which of batch, weights and state are in parts: "whole"
    on every rank, "part" of each layer's on each rank, or the rank's own "layers"."""

    title: str
    known_as: str
    messages: str
    batch: str
    weights: str
    state: str


SPLITS = [
    Split("the data", "DDP, Horovod", "allreduce of gradients,\nin every step", "part", "whole", "whole"),
    Split(
        "the optimizer's state",
        "ZeRO; FSDP splits the weights, too",
        "reduce-scatter of gradients,\nallgather of weights",
        "part",
        "whole",
        "part",
    ),
    Split("the layers", "pipeline", "send and receive\nof activations", "whole", "layers", "layers"),
    Split("the tensors", "tensor parallel", "allreduce of activations,\nin every layer", "whole", "part", "part"),
]


def collective(name: str, before: list, after: list) -> RecordFigure:
    """Draw `before` and `after`: for each rank, by rank, what it holds: a value, a list of values, or None.

    A cell has the colour of the rank that held its value before. A sum over all ranks' values (element by
    element) has stripes in the colours of all of them; anything else stays white.
    """
    if len(before) != len(after):
        raise InputError(f"{len(before)} ranks before, but {len(after)} after: give one entry per rank.")
    columns = [[_cells(held) for held in side] for side in (before, after)]
    ranks_of = _givers(columns[0])
    n, height = len(before), max(len(cells) for side in columns for cells in side)
    width = n * (1 + GAP) - GAP
    figure = RecordFigure(figsize=(min(2.4 + 2.1 * n, 16), 1.25 + 0.52 * height), facecolor="white")
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    middle = 1.9
    axes.set(xlim=(-0.1, 2 * width + middle + 0.1), ylim=(height + 0.15, -1.5))
    axes.axis("off")
    for left, title, side in ((0, "before", columns[0]), (width + middle, "after", columns[1])):
        axes.text(left + width / 2, -1.25, title, color=GREY, **CENTRED)
        for rank, cells in enumerate(side):
            x = left + rank * (1 + GAP)
            axes.text(x + 0.5, -0.4, f"rank {rank}", weight="bold", **CENTRED)
            for y, value in enumerate(cells):
                _stripes(axes, x, y, ranks_of.get(value, []))
                axes.add_patch(Rectangle((x, y), 1, 1, fill=False, ec="black", lw=1.2))
                axes.text(x + 0.5, y + 0.5, f"{value:g}" if isinstance(value, float) else str(value), **CENTRED)
            if not cells:
                axes.add_patch(Rectangle((x, 0), 1, 1, fill=False, ls=":", ec=GREY, lw=1))
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


def _givers(before: list[list]) -> dict[Any, list[int]]:
    """The ranks whose colours a value gets: the only one that held it, or all whose values add up to it."""
    givers: dict[Any, list[int]] = {}
    holders = [rank for rank, cells in enumerate(before) if cells]
    for row in zip(*filter(None, before), strict=False):
        if len(holders) > 1 and all(isinstance(value, int | float) for value in row):
            givers[sum(row)] = holders
    held_by: dict[Any, set[int]] = {}
    for rank, cells in enumerate(before):
        for value in cells:
            held_by.setdefault(value, set()).add(rank)
    return givers | {value: list(ranks) for value, ranks in held_by.items() if len(ranks) == 1}


def _stripes(axes: Axes, x: float, y: float, ranks: list[int]) -> None:
    """A cell in the colours of these ranks, white without any."""
    for at, rank in enumerate(ranks):
        look = {"fc": TINTS[rank % len(TINTS)], "ec": "none"}
        axes.add_patch(Rectangle((x + at / len(ranks), y), 1 / len(ranks), 1, **look))
    if not ranks:
        axes.add_patch(Rectangle((x, y), 1, 1, fc="white", ec="none"))


def ring(p: int = 4) -> RecordFigure:
    """Draw the steps of a ring allreduce of `p` ranks, one panel for the start and one for each step.

    A column is a rank, a row a chunk. A cell lists the ranks whose values are summed in it, and has their
    colours; a thick frame and an arrow mark what has just arrived. Raises InputError unless p is 2 to 5.
    """
    if not 2 <= p <= 5:
        raise InputError(f"a ring of {p} ranks cannot be drawn readably; use 2 to 5.")
    figure = RecordFigure(figsize=(0.72 * p * (p + 0.55) + 0.2, 1.2 * p + 2.1), facecolor="white")
    panels = figure.subplots(2, p)
    held = [[{rank} for rank in range(p)] for _ in range(p)]  # [chunk][rank]
    _ring_panel(panels[0, 0], "start", held, [])
    panels[1, 0].axis("off")
    for step in range(1, 2 * p - 1):
        # Chunk c has come from rank c, a rank a step, and meets each rank's part of the sum on its way.
        moves = [(chunk, (chunk + step - 1) % p, (chunk + step) % p) for chunk in range(p)]
        for chunk, source, dest in moves:
            adds = step < p
            held[chunk][dest] = held[chunk][source] | (held[chunk][dest] if adds else set())
        row, column = (0, step) if step < p else (1, step - p + 1)
        _ring_panel(panels[row, column], f"step {step}", held, moves)
    figure.subplots_adjust(left=0.045, right=0.995, top=0.85, bottom=0.03, hspace=0.62, wspace=0.1)
    for panel, text in zip(panels[:, 1], PHASES, strict=True):
        look = {"fontsize": FONT_SIZE, "color": GREY, "annotation_clip": False}
        panel.annotate(text, (0, 1), (0, 46), xycoords="axes fraction", textcoords="offset points", **look)
    return figure


def _ring_panel(axes: Axes, title: str, held: list[list[set]], moves: list[tuple[int, int, int]]) -> None:
    p = len(held)
    axes.set(xlim=(-0.25, p + 0.08), ylim=(p + 0.08, -0.08), aspect="auto")
    axes.set_title(title, fontsize=FONT_SIZE, weight="bold", pad=22)
    axes.axis("off")
    arrived = {(chunk, dest) for chunk, _, dest in moves}
    for chunk in range(p):
        axes.text(chunk + 0.5, -0.12, f"rank {chunk}", ha="center", va="bottom", fontsize=FONT_SIZE - 4)
        if title == "start":
            axes.text(-0.1, chunk + 0.5, f"chunk {chunk}", ha="right", va="center", fontsize=FONT_SIZE - 4)
        for rank in range(p):
            givers = sorted(held[chunk][rank])
            text = "all" if len(givers) == p else "+".join(map(str, givers))
            _stripes(axes, rank, chunk, givers)
            frame = {"lw": 2.6, "zorder": 3} if (chunk, rank) in arrived else {"lw": 0.8, "zorder": 2}
            axes.add_patch(Rectangle((rank, chunk), 1, 1, fill=False, ec="black", **frame))
            axes.text(rank + 0.5, chunk + 0.6, text, **CENTRED | {"fontsize": FONT_SIZE - 3})
    for chunk, _, dest in moves:  # into rank 0 the arrow comes from outside: the last rank is its neighbour
        ends = (dest - 0.2, chunk + 0.18), (dest + 0.22, chunk + 0.18)
        axes.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=10, lw=1.4, zorder=4))


def splits() -> RecordFigure:
    """Draw four ways to split one training over two ranks: what each rank holds in colour, what it lacks dotted."""
    figure = RecordFigure(figsize=(13, 5), facecolor="white")
    for axes, split in zip(figure.subplots(1, len(SPLITS)), SPLITS, strict=True):
        axes.set(xlim=(-0.1, 2.5), ylim=(LAYERS + 3.5, -1.9))
        axes.axis("off")
        axes.text(1.2, -1.5, split.title, weight="bold", **CENTRED | {"fontsize": FONT_SIZE + 1})
        axes.text(1.2, -1.0, split.known_as, color=GREY, **CENTRED | {"fontsize": FONT_SIZE - 2})
        for rank in range(2):
            left = 1.4 * rank
            axes.text(left + 0.5, -0.3, f"rank {rank}", **CENTRED)
            _held(axes, (left, 0), (1, 0.7), rank, split.batch)
            axes.text(left + 0.5, 0.35, "batch", **CENTRED | {"fontsize": FONT_SIZE - 2})
            for layer in range(LAYERS):
                y, mine = 1 + layer, layer // (LAYERS // 2) == rank
                _held(axes, (left, y), (0.62, 0.85), rank, split.weights, mine)
                _held(axes, (left + 0.7, y), (0.3, 0.85), rank, split.state, mine)
        _name_columns(axes)
        axes.text(1.2, LAYERS + 2.6, split.messages, **CENTRED | {"fontsize": FONT_SIZE - 1})
    figure.subplots_adjust(left=0.01, right=0.99, top=0.98, bottom=0.02, wspace=0.12)
    return figure


def _name_columns(axes: Axes) -> None:
    for left in (0, 1.4):
        for x, name in ((0.31, "weights"), (0.87, "state")):
            axes.text(left + x, LAYERS + 1.2, name, color=GREY, **CENTRED | {"fontsize": FONT_SIZE - 3})


def _held(axes: Axes, corner: tuple, size: tuple, rank: int, how: str, mine: bool = True) -> None:
    """A box of which a rank holds the whole, its half, or all or nothing (of "layers", which may be `mine`)."""
    (x, y), (width, height) = corner, size
    start, stop = {"whole": (0, 1), "part": (rank / 2, (rank + 1) / 2), "layers": (0, int(mine))}[how]
    axes.add_patch(Rectangle((x + start * width, y), (stop - start) * width, height, fc=TINTS[rank], ec="none"))
    axes.add_patch(Rectangle(corner, *size, fill=False, ls=":" if stop - start < 1 else "-", ec=GREY, lw=1))


def zero(held: Mapping[str, Sequence[Mapping[str, float]]], parameters: int) -> RecordFigure:
    """Draw what each rank holds of a model's states, stacked, in bytes per parameter: a panel for each way to share
    them out, by title, and in it a bar for each rank.

    held: bytes by KINDS, of each rank. A dotted frame is the whole of a kind, the most that any rank holds of it. A
    share lies in it where the rank's share lies in the whole, so the bars of a panel show who holds what. Raises
    InputError without panels, or when one has no ranks.
    """
    if not held or not all(held.values()):
        raise InputError("nothing to draw: give at least one way, and for each what every rank holds.")
    whole = {kind: max(rank[kind] for ranks in held.values() for rank in ranks) / parameters for kind in KINDS}
    figure = RecordFigure(figsize=(min(1.2 + 2.9 * len(held), 16), 5.2), facecolor="white")
    panels = figure.subplots(1, len(held), sharey=True, squeeze=False)[0]
    for axes, (title, ranks) in zip(panels, held.items(), strict=True):
        for rank, states in enumerate(ranks):
            place = rank / (len(ranks) - 1) if len(ranks) > 1 else 0.0
            _stack(axes, rank, place, {kind: states[kind] / parameters for kind in KINDS}, whole)
        each = [sum(states.values()) / parameters for states in ranks]
        axes.set_title(f"{title}\n{max(each):.3g} bytes", fontsize=FONT_SIZE, weight="bold")
        axes.set_xticks(range(len(ranks)))
        axes.set_xlabel("rank", fontsize=FONT_SIZE - 1)
        axes.set_xlim(-0.6, len(ranks) - 0.4)
        axes.tick_params(labelsize=FONT_SIZE - 1, length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[0].set_ylabel("bytes per parameter", fontsize=FONT_SIZE)
    looks = {kind: MEMORY_LOOKS[kind] for kind in reversed(KINDS)}
    figure.legend(handles=patches(looks), loc="lower center", ncols=len(looks), frameon=False, fontsize=FONT_SIZE)
    figure.subplots_adjust(left=0.9 / figure.get_figwidth(), right=0.99, top=0.87, bottom=0.17, wspace=0.12)
    return figure


def _stack(axes: Axes, rank: int, place: float, states: Mapping[str, float], whole: Mapping[str, float]) -> None:
    """One rank's bar: of each kind a frame for the whole, and in it what the rank holds, at the bottom for place 0."""
    bottom = 0.0
    for kind in KINDS:
        colour, hatch = MEMORY_LOOKS[kind]
        start = bottom + place * (whole[kind] - states[kind])
        axes.bar(rank, states[kind], 0.8, start, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
        axes.add_patch(Rectangle((rank - 0.4, bottom), 0.8, whole[kind], fill=False, ls=":", ec=GREY, lw=1))
        bottom += whole[kind]
