"""Draw a mesh of ranks and what one of them sends, for 12_thousand_ranks."""

from matplotlib.patches import Rectangle

from workshop_lib.dryrun.step_report import Report
from workshop_lib.forecast.forecast import mesh_shape
from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.figures import CENTERED, RecordFigure

# The most that are drawn; a longer dimension shows its first ranks and its last one.
ROWS = 6
COLUMNS = 8
TENSOR = {"fc": palette.TINTS[1], "hatch": "//"}
DATA = {"fc": palette.TINTS[0], "hatch": ".."}


@figures.styled
def mesh(report: Report, shape: str) -> RecordFigure:
    """Draw the ranks of a mesh such as "64x16", and what one of them sends over each dimension in a step.

    Each row is a tensor group and each column a data group. report: the dry run of the rank whose row and column are
    colored.
    """
    data, tensor = mesh_shape(shape)
    rows, columns = _places(data, ROWS), _places(tensor, COLUMNS)
    figure, (axes, text) = figures.canvas((12, 1.5 + 0.78 * len(rows)), columns=2, width_ratios=(62, 36))
    axes.set(xlim=(-1.5, len(columns) * 1.25 + 0.1), ylim=(len(rows) * 1.15 + 0.5, -1.2))
    my_row, my_column = divmod(report.rank, tensor)
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            at = (x * 1.25, y * 1.15)
            label = "⋮" if row is None else "…"
            if row is not None and column is not None:
                label = str(row * tensor + column)
                look = TENSOR if row == my_row else DATA if column == my_column else {"fc": palette.PAPER}
                axes.add_patch(Rectangle(at, 1, 1, **look, ec=palette.PAPER, lw=0))
                mine = (row, column) == (my_row, my_column)
                axes.add_patch(Rectangle(at, 1, 1, fill=False, ec=palette.INK, lw=4 if mine else 1))
            axes.text(at[0] + 0.5, at[1] + 0.5, label, **CENTERED, bbox={"fc": palette.PAPER, "ec": "none", "pad": 1.2})
    axes.text(len(columns) * 0.62, -0.75, f"tensor: {tensor} ranks →", **CENTERED)
    axes.text(-0.8, len(rows) * 0.57, f"data: {data} ranks →", rotation=-90, **CENTERED)
    lines = []
    for name in ("tensor", "data"):
        own = [each for each in report.collectives if each.over == name]
        lines.append(f"over {name}: sends {sum(each.sent_bytes for each in own) / 1e6:,.2f} MB")
        lines += [*(f"   {each.calls} × {each.kind}" for each in own), ""]
    text.set_title(f"Rank {report.rank} in one step")
    text.text(0, 0.97, "\n".join(lines), va="top", linespacing=1.6, transform=text.transAxes)
    return figure


def _places(size: int, shown: int) -> list[int | None]:
    """The indices along a dimension that are drawn, with None in place of those that are left out."""
    return list(range(size)) if size <= shown else [*range(shown - 2), None, size - 1]
