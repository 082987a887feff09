"""What the figures have in common: their colours, markers, caption, legend, and how they are saved.

Colours are Okabe and Ito's (Color Universal Design, 2008), which people with any colour vision can
tell apart; every curve also has its own marker or line style, for a grey print.
"""

import io
import os
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from workshop_lib.paths import replacing
from workshop_lib.scaling import records
from workshop_lib.training.backends import REGISTRY

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
LINES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2))]
GREY = "#595959"
LEVEL = {"color": GREY, "linewidth": 1.2, "linestyle": (0, (2, 2)), "zorder": 1}
FONT_SIZE = 13
SIZE_INCHES = (12, 6.4)


class RecordFigure(Figure):
    """A figure that a notebook shows as the value of a cell, without pyplot's global state."""

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=100)
        return image.getvalue()


@dataclass(frozen=True)
class Style:
    """How one curve looks."""

    colour: str
    marker: str
    line: object

    @classmethod
    def number(cls, index: int) -> "Style":
        """The style of curve `index`; any two of the first ten differ in two of the three at least."""
        return cls(*(choices[index % len(choices)] for choices in (COLOURS, MARKERS, LINES)))


def save(figure: Figure, path: str | os.PathLike) -> Path:
    """Write `figure` as PNG at 150 dots an inch."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    return Path(path)


def new_figure(title: str, caption: str) -> RecordFigure:
    """An empty figure with its title, and under it, small, where and how the numbers were measured."""
    figure = RecordFigure(figsize=SIZE_INCHES, facecolor="white")
    figure.text(0.06, 0.945, title, fontsize=FONT_SIZE + 4, weight="bold")
    lines = textwrap.fill(caption, 118)
    figure.text(0.06, 0.93, lines, fontsize=FONT_SIZE - 2, color=GREY, verticalalignment="top")
    return figure


def data_name(frame: pd.DataFrame) -> str:
    """The name of the data set, for a title: MNIST, or the folder that was given instead."""
    return " and ".join(sorted({Path(folder).name for folder in frame["data_dir"]}))


def caption(frame: pd.DataFrame) -> str:
    """Machine, threads, binding, batch and repeats of the runs in `frame`, as one sentence."""

    def values(name: str) -> str:
        return " and ".join(map(str, sorted(frame[name].dropna().unique()))) or "not recorded"

    batches = "/".join(map(str, sorted(frame["batch_size"].unique())))
    return (
        f"{values('cpu_model')}, {values('cores')} cores, {values('device')}; "
        f"threads a rank: {values('threads_per_rank')}, binding: {values('binding')}; "
        f"batch {batches} a rank; repeats: {int(frame['repeat'].max()) + 1}"
    )


def in_order(names: Iterable[str]) -> dict[str, int]:
    """These backends in a fixed order, each with its style number, so that figures agree."""
    known = [name for backend in REGISTRY for name in records.names_of(backend)]
    everything = [*known, *sorted(set(names) - set(known))]
    return {name: index for index, name in enumerate(everything) if name in set(names)}


def draw_points(axes, x, y, bars, style: Style, hollow: bool) -> None:
    """Points with `bars` (two rows: below and above); hollow ones ran more ranks than cores."""
    axes.errorbar(
        x, y, yerr=bars, fmt=style.marker, color=style.colour, markersize=8, capsize=7,
        markerfacecolor="white" if hollow else style.colour, markeredgewidth=2, zorder=3,
    )  # fmt: skip


def draw_curve(axes, x, y, bars, style: Style, hollow: bool = False) -> None:
    """A line through points with bars, which `draw_points` explains."""
    axes.plot(x, y, color=style.colour, linestyle=style.line, linewidth=2, zorder=2)
    draw_points(axes, x, y, bars, style, hollow)


def handle_of(name: str, style: Style, line: bool = True) -> Line2D:
    """The legend entry of a curve."""
    return Line2D(
        [], [], color=style.colour, marker=style.marker, markersize=8, linewidth=2, label=name,
        linestyle=style.line if line else "",
    )  # fmt: skip


def hollow_note(points: pd.DataFrame) -> list[Line2D]:
    """The legend entry that explains hollow points, if there are any."""
    if not points["oversubscribed"].any():
        return []
    label = "hollow, *: oversubscribed (more ranks than cores)"
    look = {"color": GREY, "marker": "o", "markerfacecolor": "white", "markeredgewidth": 2}
    return [Line2D([], [], linestyle="", markersize=8, **look, label=label)]


def in_columns(handles: list[Line2D]) -> list[list[Line2D]]:
    """More than three in two columns, so that the legend leaves room for the axes."""
    half = (len(handles) + 1) // 2 if len(handles) > 3 else len(handles)
    return [column for column in (handles[:half], handles[half:]) if column]


def draw_legend(figure: Figure, *columns: list[Line2D]) -> None:
    """Legend of these columns under the axes; the axes give way to its rows."""
    rows = max(map(len, columns))
    blank = Line2D([], [], linestyle="", label=" ")
    handles = [handle for column in columns for handle in column + [blank] * (rows - len(column))]
    figure.legend(
        handles=handles, loc="lower center", ncols=len(columns), frameon=False,
        fontsize=FONT_SIZE - 1, bbox_to_anchor=(0.5, 0.0), handlelength=3.2, columnspacing=1.6,
    )  # fmt: skip
    bottom = 0.12 + 0.045 * rows
    figure.subplots_adjust(left=0.095, right=0.98, top=0.845, bottom=bottom, wspace=0.23)
    for axes in figure.axes:
        axes.tick_params(labelsize=FONT_SIZE - 1)
        axes.xaxis.label.set_size(FONT_SIZE)
        axes.yaxis.label.set_size(FONT_SIZE)
        axes.grid(color="#D9D9D9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
