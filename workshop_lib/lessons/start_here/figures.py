"""The figure of 00_start_here: four ways to split training over ranks, and which rank holds what."""

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from workshop_lib.notebook.figures.old import FONT_SIZE, GRAY, RecordFigure

# Okabe and Ito's hues, light enough for black text. A cell's text also names its rank, for prints without color.
TINTS = ["#9CC9E8", "#F3BE94", "#93D4BC", "#E8C5D8", "#BFE0F6", "#F5D58A", "#CFCFCF", "#F7F1A6"]
CENTERED = {"ha": "center", "va": "center", "fontsize": FONT_SIZE}
LAYERS = 4


class WayToSplit(NamedTuple):
    """A way to split training: what is split, who does it, its messages, and how ranks hold batch, weights and state.

    "whole" is on every rank. Of a "part", each rank holds its share of every layer. "layers" are the rank's own layers.
    """

    title: str
    known_as: str
    messages: str
    batch: str
    weights: str
    state: str


SPLITS = [
    WayToSplit("the data", "DDP, Horovod", "allreduce of gradients,\nin every step", "part", "whole", "whole"),
    WayToSplit(
        "the optimizer's state",
        "ZeRO; FSDP splits the weights, too",
        "reduce-scatter of gradients,\nallgather of weights",
        "part",
        "whole",
        "part",
    ),
    WayToSplit("the layers", "pipeline", "send and receive\nof activations", "whole", "layers", "layers"),
    WayToSplit("the tensors", "tensor parallel", "allreduce of activations,\nin every layer", "whole", "part", "part"),
]


def splits() -> RecordFigure:
    """Draw four ways to split training over two ranks: what a rank holds is colored, what it lacks is dotted."""
    figure = RecordFigure(figsize=(13, 5), facecolor="white")
    for axes, split in zip(figure.subplots(1, len(SPLITS)), SPLITS, strict=True):
        axes.set(xlim=(-0.1, 2.5), ylim=(LAYERS + 3.5, -1.9))
        axes.axis("off")
        axes.text(1.2, -1.5, split.title, weight="bold", **CENTERED | {"fontsize": FONT_SIZE + 1})
        axes.text(1.2, -1.0, split.known_as, color=GRAY, **CENTERED | {"fontsize": FONT_SIZE - 2})
        for rank in range(2):
            left = 1.4 * rank
            axes.text(left + 0.5, -0.3, f"rank {rank}", **CENTERED)
            _held(axes, (left, 0), (1, 0.7), rank, split.batch)
            axes.text(left + 0.5, 0.35, "batch", **CENTERED | {"fontsize": FONT_SIZE - 2})
            for layer in range(LAYERS):
                y = 1 + layer
                mine = layer // (LAYERS // 2) == rank
                _held(axes, (left, y), (0.62, 0.85), rank, split.weights, mine)
                _held(axes, (left + 0.7, y), (0.3, 0.85), rank, split.state, mine)
        _name_columns(axes)
        axes.text(1.2, LAYERS + 2.6, split.messages, **CENTERED | {"fontsize": FONT_SIZE - 1})
    figure.subplots_adjust(left=0.01, right=0.99, top=0.98, bottom=0.02, wspace=0.12)
    return figure


def _name_columns(axes: Axes) -> None:
    for left in (0, 1.4):
        for x, name in ((0.31, "weights"), (0.87, "state")):
            axes.text(left + x, LAYERS + 1.2, name, color=GRAY, **CENTERED | {"fontsize": FONT_SIZE - 3})


def _held(axes: Axes, corner: tuple, size: tuple, rank: int, how: str, mine: bool = True) -> None:
    """Draw a box, filled as far as the rank holds it: "whole", half ("part"), or only if it is `mine` ("layers")."""
    x, y = corner
    width, height = size
    start, stop = {"whole": (0, 1), "part": (rank / 2, (rank + 1) / 2), "layers": (0, int(mine))}[how]
    axes.add_patch(Rectangle((x + start * width, y), (stop - start) * width, height, fc=TINTS[rank], ec="none"))
    axes.add_patch(Rectangle(corner, *size, fill=False, ls=":" if stop - start < 1 else "-", ec=GRAY, lw=1))
