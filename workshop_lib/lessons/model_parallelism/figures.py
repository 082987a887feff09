"""The figure of 11_model_parallelism: an MLP cut by columns and rows."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from workshop_lib.errors import InputError
from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.figures import CENTERED, SMALL, RecordFigure


@figures.styled
def mlp_in_parts(ranks: int = 2) -> RecordFigure:
    """Draw an MLP with its first layer cut by columns, its second by rows. Raises InputError unless 2 <= ranks <= 4."""
    if not 2 <= ranks <= 4:
        raise InputError(f"an MLP on {ranks} ranks cannot be drawn readably; use 2 to 4.")
    figure, axes = figures.canvas((13, 4.3))
    axes.set(xlim=(0, 30), ylim=(8.6, 0))
    tints = palette.TINTS[:ranks]
    _matrix(axes, (1.8, 3.2), (2.0, 1.6), [palette.PAPER], False, "x\nwhole on every rank")
    _matrix(axes, (5.8, 3.0), (5.2, 2.0), tints, False, "up\ncut by columns (outputs)")
    _matrix(axes, (13.4, 3.2), (5.2, 1.6), tints, False, "inner numbers\neach rank has its part")
    _matrix(axes, (20.4, 1.6), (2.0, 4.8), tints, True, "down\ncut by rows (inputs)")
    for rank, tint in enumerate(tints):  # each rank's sums have the full shape, so the boxes don't touch
        top = 4.0 - 0.8 * ranks + 1.6 * rank + 0.25
        _matrix(
            axes, (26.0, top), (2.0, 1.1), [tint], False, "" if rank else "a part of each sum:\nallreduce adds them up"
        )
        axes.text(27.0, top + 0.55, f"rank {rank}", fontsize=SMALL, **CENTERED)
    for x, sign in ((4.8, "×"), (12.2, "="), (19.5, "×"), (24.2, "=")):
        axes.text(x, 4.0, sign, **CENTERED)
    axes.text(12.2, 3.3, "gelu", color=palette.GRAY, **CENTERED)
    for rank in range(1, ranks):
        axes.text(27.0, 4.0 + 1.6 * (rank - ranks / 2), "+", **CENTERED)
    return figure


def _matrix(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float], tints: Sequence[str], by_rows: bool, text: str
) -> None:
    """Draw a rectangle in strips of these colors, each labeled with its rank unless there is only one strip."""
    x, y = corner
    width, height = size
    n = len(tints)
    for at, tint in enumerate(tints):
        place = (x, y + height * at / n) if by_rows else (x + width * at / n, y)
        extent = (width, height / n) if by_rows else (width / n, height)
        axes.add_patch(Rectangle(place, *extent, fc=tint, ec=palette.INK, lw=1.2))
        if n > 1:
            middle = place[0] + extent[0] / 2, place[1] + extent[1] / 2
            axes.text(*middle, f"rank {at}", fontsize=SMALL, **CENTERED)
    axes.text(x + width / 2, 7.5, text, ha="center", va="top")
