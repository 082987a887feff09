"""Figures. This file holds what all of them share: style, caption, legend, bars, saving.

`scaling` and `accuracy` draw run records; lessons draw their own figures in their `figures` modules. One call
draws one figure.

The first seven colors are Okabe and Ito's (Color Universal Design, 2008). People with any color vision can tell all
colors apart. Every curve also has its own marker, so that a print in gray is readable.
"""

import os
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from workshop_lib.errors import InputError
from workshop_lib.notebook.figures import Look, RecordFigure
from workshop_lib.paths import replacing

BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
LIGHT_BLUE = "#56B4E9"
YELLOW = "#E69F00"
BLACK = "#000000"
COLORS = [BLUE, VERMILION, GREEN, PURPLE, LIGHT_BLUE, YELLOW, BLACK]
COLORS += ["#882255", "#999933", "#4800F0", "#900000", "#480060"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*", "h", "<", ">", "d"]
LINES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2))]
# The style's number of each name of a run (results.records.name_of). A name keeps its number, whatever else is added.
# A new name needs a new number, and beyond the last one also a new color and a new marker above.
NUMBER_OF_NAME = {
    "mpi": 0,
    "ddp": 1,
    "fsdp": 2,
    "deepspeed-0": 3,
    "deepspeed-1": 4,
    "deepspeed-2": 5,
    "deepspeed-3": 6,
    "horovod": 7,
    "horovod-tf": 8,
    "horovod-keras": 9,
    "ddp-mpi": 10,
    "fsdp-mpi": 11,
}
GRAY = "#595959"
GRID = "#D9D9D9"
LEVEL = {"color": GRAY, "linewidth": 1.2, "linestyle": (0, (2, 2)), "zorder": 1}
PERFECT = {"color": GRAY, "linewidth": 1.5, "linestyle": (0, (1, 1.5)), "zorder": 1}
FONT_SIZE = 13
SIZE_INCHES = (12, 6.4)
ON_WHITE = {"fc": "white", "ec": "none", "pad": 1.5}  # the box behind a number on a colored bar
ROOM = 0.08  # share of the axis: a bar segment narrower than this has no room for its number


@dataclass(frozen=True)
class OldStyle:
    """How one curve looks."""

    color: str
    marker: str
    line: Any

    @classmethod
    def number(cls, index: int) -> "OldStyle":
        """The style of curve `index`; the first twelve differ in color and marker."""
        return cls(COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)], LINES[index % len(LINES)])

    @classmethod
    def of(cls, name: str) -> "OldStyle":
        """The style of a run's name, which is the same in all figures; gray for a name that this version lacks."""
        return cls.number(NUMBER_OF_NAME[name]) if name in NUMBER_OF_NAME else cls(GRAY, "p", "-")

    @property
    def curve(self) -> dict[str, Any]:
        """Arguments for matplotlib that draw the curve's line without markers."""
        return {"color": self.color, "linestyle": self.line, "linewidth": 2}


STEP_LOOKS = {"computing": Look(BLUE, ""), "waiting": Look(YELLOW, "//"), "Allreduce": Look(GREEN, "||")}


def save(figure: Figure, path: str | os.PathLike) -> Path:
    """Write `figure` as PNG at 150 dots per inch; return its path."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    return Path(path)


def new_figure(title: str, caption: str, height_inches: float = SIZE_INCHES[1]) -> RecordFigure:
    """An empty figure with a title and, in small type below it, a caption: where and how the numbers were measured."""
    figure = RecordFigure(figsize=(SIZE_INCHES[0], height_inches), facecolor="white")
    figure.text(0.06, 1 - 0.35 / height_inches, title, fontsize=FONT_SIZE + 4, weight="bold")
    place = (0.06, 1 - 0.45 / height_inches)
    figure.text(*place, textwrap.fill(caption, 118), fontsize=FONT_SIZE - 2, color=GRAY, va="top")
    return figure


def answer_figure(title: str, conditions: str, height_inches: float = SIZE_INCHES[1]) -> tuple[RecordFigure, float]:
    """An empty figure with a sentence as its title, and the height (from 0 to 1) at which the conditions below
    the title end."""
    figure = RecordFigure(figsize=(SIZE_INCHES[0], height_inches), facecolor="white")
    lines = textwrap.wrap(title, 88)
    small = textwrap.wrap(conditions, 125)
    figure.text(0.03, 1 - 0.15 / height_inches, "\n".join(lines), fontsize=FONT_SIZE + 2, weight="bold", va="top")
    below = 0.2 + 0.29 * len(lines)
    place = (0.03, 1 - below / height_inches)
    figure.text(*place, "\n".join(small), fontsize=FONT_SIZE - 1, color=GRAY, va="top")
    return figure, 1 - (below + 0.1 + 0.22 * len(small)) / height_inches


def spread(middle, low, high) -> np.ndarray:
    """The lengths [2, n] of error bars from `middle` down to `low` and up to `high`; NaN where `low` is NaN."""
    return np.where(np.isnan(low), np.nan, [middle - low, high - middle])


def draw_points(axes: Axes, x, y, bars, style: OldStyle, hollow: bool, across: bool = False) -> None:
    """Draw points with error bars, whose lengths `bars` holds in two rows: below and above.

    `across` draws horizontal bars, for a measured x. `hollow` marks runs with more ranks than cores.
    """
    face = "white" if hollow else style.color
    look = {"fmt": style.marker, "color": style.color, "markersize": 8, "markerfacecolor": face, "markeredgewidth": 2}
    axes.errorbar(x, y, **{"xerr" if across else "yerr": bars}, **look, capsize=6, zorder=3)


def over_repeats(repeats, middle: str = "median") -> tuple:
    """(middle, lowest, highest) per group of a pandas `groupby`, for `draw_curve`; lowest is NaN for one repeat."""
    return repeats.agg(middle), repeats.min().where(repeats.count() > 1), repeats.max()


def draw_curve(axes: Axes, x, values, style: OldStyle, hollow: bool = False) -> None:
    """Draw a line through points with error bars; `values` is (middle, low, high)."""
    axes.plot(x, values[0], **style.curve, zorder=2)
    draw_points(axes, x, values[0], spread(*values), style, hollow)


def entry(label: str, **look) -> Line2D:
    """The legend entry of a line or marker; `look` holds arguments of Line2D."""
    return Line2D([], [], **look, label=label)


def handle_of(name: str, style: OldStyle, line: bool = True, marker: bool = True) -> Line2D:
    """The legend entry of a curve, or of its line or marker alone."""
    look = style.curve if line else style.curve | {"linestyle": ""}
    return entry(name, **look, marker=style.marker if marker else "", markersize=8)


def handles_of(names: Iterable[str], **parts: bool) -> list[Artist]:
    """The legend entries of the curves 0, 1, … with these names; `parts` as in `handle_of`."""
    return [handle_of(name, OldStyle.number(index), **parts) for index, name in enumerate(names)]


def hollow_note(oversubscribed: bool) -> list[Line2D]:
    """The legend entry that explains hollow points; no entry if there are none."""
    look = {"color": GRAY, "marker": "o", "markerfacecolor": "white", "markeredgewidth": 2, "markersize": 8}
    label = "hollow, *: oversubscribed (more ranks than cores)"
    return [entry(label, linestyle="", **look)] if oversubscribed else []


def ticks_at(axis, values, labels: list[str] | None = None) -> None:
    """Put ticks at these values and nowhere else, whatever the scale."""
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_minor_locator(NullLocator())
    axis.set_ticklabels(labels or [str(value) for value in values])


def log_ticks(axis, form: str = "{x:,g}", subs: tuple = (1, 2, 5)) -> None:
    """Put ticks at these multiples of powers of ten, labeled with plain numbers."""
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(form)


def draw_legend(figure: Figure, first: list[Artist], *more: list[Artist]) -> None:
    """Draw a legend of these columns, leaving out empty ones, and shrink the axes to make room for it below them.

    If the first column has more than three entries, it is split in two, so that the legend stays low.
    """
    half = (len(first) + 1) // 2 if len(first) > 3 else len(first)
    columns = tuple(filter(None, (first[:half], first[half:], *more)))
    rows = max(map(len, columns))
    handles = [handle for column in columns for handle in column + [entry(" ", linestyle="")] * (rows - len(column))]
    look = {"frameon": False, "fontsize": FONT_SIZE - 1, "handlelength": 3.2, "columnspacing": 1.6}
    figure.legend(handles=handles, loc="lower center", ncols=len(columns), bbox_to_anchor=(0.5, 0.0), **look)
    tall = figure.get_figheight()
    place = {"left": 0.095, "right": 0.98, "top": 1 - 1 / tall, "bottom": (0.77 + 0.29 * rows) / tall}
    figure.subplots_adjust(**place, wspace=0.23)
    for axes in figure.axes:
        axes.tick_params(labelsize=FONT_SIZE - 1)
        axes.xaxis.label.set_size(FONT_SIZE)
        axes.yaxis.label.set_size(FONT_SIZE)
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)


def patches(looks: Mapping[str, Look]) -> list[Patch]:
    """Legend entries for these kinds of bars."""
    return [Patch(fc=color, hatch=hatch, ec="white", label=kind) for kind, (color, hatch) in looks.items()]


def draw_bar(axes: Axes, row: float, left: float, width: float, look: Look, height: float = 0.72) -> None:
    """Draw one segment of a horizontal bar."""
    axes.barh(row, width, height, left=left, color=look.color, hatch=look.hatch, edgecolor="white", linewidth=0)


def number_bar(axes: Axes, row: float, left: float, width: float, number: str, **look) -> None:
    """Write a number in the middle of a segment of a horizontal bar."""
    where = {"ha": "center", "va": "center", "fontsize": FONT_SIZE}
    axes.text(left + width / 2, row, number, **where | {"bbox": ON_WHITE} | look)


def bare(axes: Axes) -> None:
    """Style axes for horizontal bars: vertical grid lines, and no frame except for the x axis."""
    axes.tick_params(labelsize=FONT_SIZE - 1)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def stacked(
    rows: Mapping[str, float], x_label: str, handles: list, left: float = 0.08, row_inches=0.5, legend_columns=4
) -> RecordFigure:
    """A figure with axes for horizontal bars, one below another; `rows` maps each title to its number of bars.

    Raises InputError when there is nothing to draw.
    """
    if not rows or not all(rows.values()):
        raise InputError(
            "nothing to draw: give at least one panel, and in each at least one step of at least one rank."
        )
    legend_rows = -(-len(handles) // legend_columns)
    tall = 0.75 + 0.25 * legend_rows + sum(0.75 + row_inches * count for count in rows.values())
    figure = RecordFigure(figsize=(SIZE_INCHES[0], tall), facecolor="white")
    top = tall + 0.3
    for title, count in rows.items():
        top -= 0.75 + row_inches * count
        axes = figure.add_axes((left, top / tall, 0.98 - left, row_inches * count / tall))
        axes.set_title(title, loc="left", fontsize=FONT_SIZE, weight="bold")
        bare(axes)
    axes.set_xlabel(x_label, fontsize=FONT_SIZE)
    look = {"frameon": False, "fontsize": FONT_SIZE - 1, "ncols": min(legend_columns, len(handles))}
    figure.legend(handles=handles, loc="lower center", **look)
    return figure


def name_rows(axes: Axes, names: Iterable[str]) -> None:
    """Label a row of bars with each name, the first on top."""
    labels = list(names)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)


Style = OldStyle
