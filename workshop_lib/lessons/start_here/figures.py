"""The figure of 00_start_here: four ways to split training over ranks, and which rank holds what."""

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.figures import CENTERED, SMALL

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


@figures.styled
def splits() -> figures.RecordFigure:
    """Draw four ways to split training over two ranks: what a rank holds is colored, what it lacks is dotted."""
    figure, panels = figures.canvas((13, 5), columns=len(SPLITS))
    for axes, split in zip(panels, SPLITS, strict=True):
        axes.set(xlim=(-0.1, 2.5), ylim=(LAYERS + 3.2, -1.4))
        axes.set_title(split.title, loc="center")
        axes.text(1.2, -1.1, split.known_as, color=palette.GRAY, fontsize=SMALL, **CENTERED)
        for rank in range(2):
            _rank(axes, 1.4 * rank, rank, split)
        axes.text(1.2, LAYERS + 2.4, split.messages, **CENTERED)
    return figure


def _rank(axes: Axes, left: float, rank: int, split: WayToSplit) -> None:
    """Draw what one rank holds: its batch, and the weights and the optimizer's state of each layer."""
    axes.text(left + 0.5, -0.3, f"rank {rank}", **CENTERED)
    _held(axes, (left, 0), (1, 0.7), rank, split.batch)
    axes.text(left + 0.5, 0.35, "batch", fontsize=SMALL, **CENTERED)
    for layer in range(LAYERS):
        y = 1 + layer
        mine = layer // (LAYERS // 2) == rank
        _held(axes, (left, y), (0.62, 0.85), rank, split.weights, mine)
        _held(axes, (left + 0.7, y), (0.3, 0.85), rank, split.state, mine)
    for x, name in ((0.28, "weights"), (0.87, "state")):
        axes.text(left + x, LAYERS + 1.2, name, color=palette.GRAY, fontsize=SMALL, **CENTERED)


def _held(axes: Axes, corner: tuple, size: tuple, rank: int, how: str, mine: bool = True) -> None:
    """Draw a box, filled as far as the rank holds it: "whole", half ("part"), or only if it is `mine` ("layers")."""
    x, y = corner
    width, height = size
    start, stop = {"whole": (0, 1), "part": (rank / 2, (rank + 1) / 2), "layers": (0, int(mine))}[how]
    axes.add_patch(Rectangle((x + start * width, y), (stop - start) * width, height, fc=palette.TINTS[rank], ec="none"))
    axes.add_patch(Rectangle(corner, *size, fill=False, ls=":" if stop - start < 1 else "-", ec=palette.GRAY, lw=1))
