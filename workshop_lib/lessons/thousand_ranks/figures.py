"""Draw a mesh of ranks and what one of them sends, and forecasts against published runs, for 12_thousand_ranks."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.ticker import PercentFormatter

from workshop_lib.errors import InputError
from workshop_lib.lessons.thousand_ranks.step_report import Report, mesh_shape
from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.figures import CENTERED, RecordFigure

# The most that are drawn; a longer dimension shows its first ranks and its last one.
ROWS = 6
COLUMNS = 8


@figures.styled
def mesh(report: Report, shape: str, a_node: int = 0) -> RecordFigure:
    """Draw the ranks of a mesh such as "64x16", and what one of them sends over each dimension in a step.

    Each row is a tensor group and each column a data group. report: the dry run of the rank whose row and column are
    colored. a_node: the number of ranks per node; if given, a frame surrounds each node. Raises InputError unless the
    mesh has two dimensions.
    """
    sizes = mesh_shape(shape)
    if len(sizes) != 2:
        raise InputError(f"the mesh {shape!r} has {len(sizes)} dimension(s): only two can be drawn.")
    data, tensor = sizes
    rows = _places(data, ROWS)
    columns = _places(tensor, COLUMNS)
    figure, (axes, text) = figures.canvas((12, 1.5 + 0.78 * len(rows)), columns=2, width_ratios=(62, 36))
    axes.set(xlim=(-1.5, len(columns) * 1.25 + 0.1), ylim=(len(rows) * 1.15 + 0.5, -1.2))
    mine = divmod(report.rank, tensor)
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            _rank(axes, x * 1.25, y * 1.15, row, column, tensor, mine)
    axes.text(len(columns) * 0.62, -0.75, f"tensor: {tensor} ranks →", **CENTERED)
    axes.text(-0.8, len(rows) * 0.57, f"data: {data} ranks →", rotation=-90, **CENTERED)
    if a_node:
        _nodes(axes, rows, columns, tensor, a_node)
    _sent(text, report, a_node)
    return figure


def _places(size: int, shown: int) -> list[int | None]:
    """The indices along a dimension that are drawn, with None in place of those that are left out."""
    return list(range(size)) if size <= shown else [*range(shown - 2), None, size - 1]


def _rank(axes: Axes, x: float, y: float, row: int | None, column: int | None, tensor: int, mine: tuple) -> None:
    if row is None or column is None:
        axes.text(x + 0.5, y + 0.5, "⋮" if column is not None else "…", **CENTERED)
        return
    over = "both" if (row, column) == mine else "tensor" if row == mine[0] else "data" if column == mine[1] else ""
    color = {"both": palette.TINTS[7], "tensor": palette.TINTS[1], "data": palette.TINTS[0], "": palette.PAPER}[over]
    hatch = {"tensor": "//", "data": ".."}.get(over, "")
    axes.add_patch(Rectangle((x, y), 1, 1, fc=color, ec=palette.PAPER, hatch=hatch, lw=0))
    axes.add_patch(Rectangle((x, y), 1, 1, fill=False, ec=palette.INK, lw=2.6 if over == "both" else 1))
    look = CENTERED | {"weight": "bold" if over == "both" else "normal"}
    axes.text(x + 0.5, y + 0.5, f"{row * tensor + column}", **look, bbox={"fc": color, "ec": "none", "pad": 1.2})


def _nodes(axes: Axes, rows: list, columns: list, tensor: int, a_node: int) -> None:
    """Draw a frame around each node whose ranks are all in the picture."""
    look = {"boxstyle": "round,pad=0.07", "fill": False, "ec": palette.GRAY, "lw": 1.4, "ls": "--"}
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            if row is None or column is None or (row * tensor + column) % a_node:
                continue
            wide = sum(each is not None and column <= each < column + a_node for each in columns)
            high = sum(each is not None and row <= each < row + max(1, a_node // tensor) for each in rows)
            if wide * high != a_node:
                continue
            size = (1.25 * (wide - 1) + 1 + 0.06, 1.15 * (high - 1) + 1 + 0.06)
            axes.add_patch(FancyBboxPatch((x * 1.25 - 0.03, y * 1.15 - 0.03), *size, **look))


def _sent(axes: Axes, report: Report, a_node: int) -> None:
    """Write beside the mesh what rank `report.rank` sends over each dimension."""
    lines = []
    for name in ("tensor", "data"):
        own = [each for each in report.collectives if (each.over == name) or (name == "data" and each.over == "world")]
        lines.append(f"over {name}: sends {sum(each.sent_bytes for each in own) / 1e6:,.2f} MB")
        lines += [f"   {each.calls} × {each.kind}" for each in own] or ["   nothing"]
        lines.append("")
    if a_node:
        lines.append(f"dashed: a node of {a_node} ranks")
    axes.set_title(f"Rank {report.rank} in one step")
    axes.text(0, 0.97, "\n".join(lines), va="top", linespacing=1.6, transform=axes.transAxes)


@figures.styled
def beside_published(rows: pd.DataFrame) -> RecordFigure:
    """Draw forecast against published utilization. Points on the line are exact.

    rows: the table from `published_meshes.beside_forecast`.
    """
    middle = rows["error"].abs().median()
    worst = rows.loc[rows["error"].abs().idxmax()]
    title = f"Forecast of {len(rows)} published runs: {middle:.0%} off in the median"
    caption = f"worst: {worst['table']} on {worst['ranks']:,} GPUs, {worst['error']:+.0%}; points on the line are exact"
    figure, axes = figures.new_figure(title, caption)
    for name, of_table in rows.groupby("table", sort=False):
        axes.plot(of_table["published"], of_table["forecast"], linestyle="", markersize=10, label=str(name))
    ends = [0, 1.1 * rows[["published", "forecast"]].to_numpy().max()]
    axes.plot(ends, ends, **figures.PERFECT, label="exact")
    axes.set(xlim=ends, ylim=ends, xlabel="published MFU", ylabel="forecast MFU")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure
