"""Figures. This file holds what all of them share: one style, title and caption, error bars, ticks, bars, saving.

`scaling` and `accuracy` draw run records; lessons draw their own figures in their `figures` modules. One call draws one
figure. A function that draws is decorated with `styled`. It begins with `new_figure` and gives whatever it draws a
label; the layout and the legend follow from that.

Every curve of a plot has its own color, marker and dash, so that a print in gray is readable.
"""

import base64
import functools
import io
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, ValuesView
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from workshop_lib.errors import InputError
from workshop_lib.notebook.palette import BLUE, COLORS, GRAY, GREEN, GRID, INK, PAPER, YELLOW
from workshop_lib.paths import replacing

MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*", "h", "<", ">", "d"]
DASHES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2))] * 2
CYCLE = cycler(color=COLORS, marker=MARKERS, linestyle=DASHES)
FONT_SIZE = 13
SMALL = 11
# Figures begin from matplotlib's own defaults, so that a personal matplotlibrc (`text.usetex: True`) changes none.
DEFAULTS = {name: value for name, value in mpl.rcParamsDefault.items() if name != "backend"}
STYLE: dict[str, Any] = DEFAULTS | {
    "axes.prop_cycle": CYCLE,
    "font.size": FONT_SIZE,
    "axes.titlesize": FONT_SIZE,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.labelsize": FONT_SIZE - 1,
    "ytick.labelsize": FONT_SIZE - 1,
    "legend.fontsize": FONT_SIZE - 1,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 2,
    "lines.markersize": 8,
    "errorbar.capsize": 5,
    "hatch.color": PAPER,
    "grid.color": GRID,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
# The style's number of each name of a run (results.records.name_of). A name keeps its number, whatever else is added.
# A new name needs a new number, and beyond the last one also a new color, marker and dash above.
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
LEVEL = {"color": GRAY, "linewidth": 1.2, "linestyle": (0, (2, 2)), "marker": "", "zorder": 1}
PERFECT = LEVEL | {"linewidth": 1.5, "linestyle": (0, (1, 1.5))}
OTHERS = {"color": GRID, "linewidth": 1.5, "linestyle": "-", "marker": "", "zorder": 1}
HOLLOW = "hollow, *: oversubscribed (more ranks than cores)"
CENTERED = {"ha": "center", "va": "center"}
ON_PAPER = {"fc": PAPER, "ec": "none", "pad": 1.5}  # the box behind a number on a colored bar
ROOM = 0.08  # share of the axis: a bar segment narrower than this has no room for its number
# Metadata of an output. JupyterLab gives its image a class, by which custom.css darkens it in a dark theme.
FOLLOWS_THEME = {"needs_background": "light"}
Arguments = ParamSpec("Arguments")


class RecordFigure(Figure):
    """A figure that a notebook shows as the value of a cell, without pyplot's global state."""

    in_words = ""  # what the figure shows, if its labels don't say so
    numbers: Mapping[str, Any] = {}  # what it shows, by MIME type, for programs that read the saved notebook

    def __repr__(self) -> str:
        return self.in_words or super().__repr__()

    def draw(self, renderer) -> None:
        with mpl.rc_context(STYLE):  # matplotlib makes ticks as late as here
            super().draw(renderer)

    def savefig(self, *args: Any, **kwargs: Any) -> None:
        with mpl.rc_context(STYLE):
            super().savefig(*args, **kwargs)

    def png(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=100, metadata={"Description": self.description()})
        return image.getvalue()

    def _repr_mimebundle_(self, **kwargs) -> tuple[dict[str, Any], dict[str, str]]:
        return {"image/png": base64.b64encode(self.png()).decode(), **self.numbers}, FOLLOWS_THEME

    def description(self) -> str:
        """The figure in words, for people who cannot see it: titles, caption, and axes or else all texts in them."""
        if self.in_words:
            return self.in_words
        words = [text.get_text() for text in self.texts]
        words += [axes.get_title(loc=side) for axes in self.axes for side in ("left", "center")]
        scales = [f"{y} against {x}" for axes in self.axes if (y := axes.get_ylabel()) and (x := axes.get_xlabel())]
        words += scales or [text.get_text() for axes in self.axes for text in axes.texts]
        lines = dict.fromkeys(" ".join(text.split()) for text in words if text.strip())
        ended = (line if line.endswith((".", "?", "!")) else f"{line}." for line in lines)
        return textwrap.shorten(" ".join(ended), 400, placeholder=" …")


def require_data(*values: Any) -> None:
    """Raise InputError if one of these values is a list or dictionary without anything in it, at any depth."""
    if any(map(_is_empty, values)):
        raise InputError("There is nothing to draw yet: run the cell above, which measures it, to its end.")


def _is_empty(value: Any) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value
    return isinstance(parts, list | tuple | ValuesView) and all(map(_is_empty, parts))


def styled(draw: Callable[Arguments, RecordFigure]) -> Callable[Arguments, RecordFigure]:
    """A decorator: the function draws in the workshop's style, and its figure gets a legend with each label once."""

    @functools.wraps(draw)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> RecordFigure:
        with mpl.rc_context(STYLE):
            try:
                figure = draw(*args, **kwargs)
            except Exception as error:
                if not isinstance(error, InputError):
                    require_data(*args)
                raise
            _add_legend(figure)
        return figure

    return call


def _add_legend(figure: RecordFigure) -> None:
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        curves_first = sorted(handles, key=lambda label: _depth(handles[label]))
        widest_inches = 0.6 + 0.1 * max(map(len, handles))
        columns = max(1, min(len(handles), 4, int(figure.get_figwidth() / widest_inches)))
        order = [handles[label] for label in curves_first]
        figure.legend(order, curves_first, loc="outside lower center", ncols=columns)


def _depth(handle: Any) -> int:
    """Where a label stands in the legend: measured points and bars first, then lines, then bands and levels."""
    if isinstance(handle, Container):
        return 0
    return 1 if handle.get_zorder() >= 2 else 2


def new_figure(
    title: str = "",
    caption: str = "",
    rows: int = 1,
    columns: int = 1,
    size_inches: tuple[float, float] = (12, 6.4),
    **subplots: Any,
) -> tuple[RecordFigure, Any]:
    """A figure that lays itself out, and its axes: a single one, or an array as matplotlib's `subplots` returns it.

    The title is bold. The caption stands below it in small type: where and how the numbers were measured.
    """
    width, height = size_inches
    title_lines = textwrap.wrap(title, int(7 * width))
    caption_lines = textwrap.wrap(caption, int(12.2 * width))
    below_title = 0.1 + 0.28 * len(title_lines)
    head = below_title + 0.19 * len(caption_lines) if title_lines else 0
    figure = RecordFigure(size_inches, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.05, hspace=0.03))
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - head / height))
    if title_lines:
        place = (0.01, 1 - 0.1 / height)
        figure.text(*place, "\n".join(title_lines), fontsize=FONT_SIZE + 3, weight="bold", va="top", linespacing=1.15)
    if caption_lines:
        place = (0.01, 1 - below_title / height)
        figure.text(*place, "\n".join(caption_lines), fontsize=SMALL, color=GRAY, va="top", linespacing=1.15)
    return figure, figure.subplots(rows, columns, **subplots)


def panels(
    title: str, caption: str, names: Iterable[str], x_label: str, y_label: str, most_columns: int = 5
) -> tuple[RecordFigure, list[Axes]]:
    """A figure with a panel for each name, all with the same scales."""
    titles = list(names)
    columns = min(most_columns, len(titles))
    rows = -(-len(titles) // columns)
    height = 6.4 if rows == 1 else 1.8 + 2.5 * rows
    figure, grid = new_figure(title, caption, rows, columns, (12, height), sharex=True, sharey=True, squeeze=False)
    for unused in grid.flat[len(titles) :]:
        unused.remove()
    every = list(grid.flat[: len(titles)])
    for axes, name in zip(every, titles, strict=True):
        axes.set_title(name)
    for lowest in every[-columns:]:
        lowest.set_xlabel(x_label)
        lowest.tick_params(labelbottom=True)
    for first in every[::columns]:
        first.set_ylabel(y_label)
    return figure, every


def save(figure: Figure, path: str | os.PathLike) -> Path:
    """Write `figure` as PNG at 150 dots per inch; return its path."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    return Path(path)


def style(number: int) -> dict[str, Any]:
    """Color, marker and dash of curve `number`; the first twelve differ in color and marker."""
    return list(CYCLE)[number % len(CYCLE)]


def style_of(name: str) -> dict[str, Any]:
    """The style of a run's name, which is the same in all figures; gray for a name that this version lacks."""
    return style(NUMBER_OF_NAME[name]) if name in NUMBER_OF_NAME else {"color": GRAY, "marker": "p", "linestyle": "-"}


def draw_points(axes: Axes, at, values, hollow: Any = False, across: bool = False, **look: Any) -> None:
    """Draw points with error bars, joined by a line unless `look` has linestyle="".

    values: three rows, with the middle, the lowest and the highest of each point. A point whose lowest is NaN has no
    bar. at: where the points stand on the other axis, which is the y axis if `across`. hollow: which of the points had
    more ranks than cores. look: color, marker, dash and label.
    """
    at, middle, low, high = (np.atleast_1d(np.asarray(each, float)) for each in (at, *values))
    bars = np.where(np.isnan(low), np.nan, [middle - low, high - middle])
    x, y = (middle, at) if across else (at, middle)
    line = axes.errorbar(x, y, **{"xerr" if across else "yerr": bars}, **look).lines[0]
    hollow = np.broadcast_to(hollow, at.shape)
    if hollow.any():
        same = {"color": line.get_color(), "marker": line.get_marker(), "linestyle": "", "zorder": 3}
        axes.plot(x[hollow], y[hollow], **same, markerfacecolor=PAPER, markeredgewidth=2, label=HOLLOW)


def over_repeats(repeats, middle: str = "median") -> tuple:
    """(middle, lowest, highest) per group of a pandas `groupby`, for `draw_points`; lowest is NaN for one repeat."""
    return repeats.agg(middle), repeats.min().where(repeats.count() > 1), repeats.max()


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


class Look(NamedTuple):
    """How one kind of bar looks. The hatching tells kinds apart when printed in gray."""

    color: str
    hatch: str


STEP_LOOKS = {"computing": Look(BLUE, ""), "waiting": Look(YELLOW, "//"), "Allreduce": Look(GREEN, "||")}


def draw_bar(
    axes: Axes, row: float, left: float, width: float, look: Look, height: float = 0.72, label: str = ""
) -> None:
    """Draw one segment of a horizontal bar; `label` is its kind, for the legend."""
    axes.barh(row, width, height, left=left, color=look.color, hatch=look.hatch, label=label)


def number_bar(axes: Axes, row: float, left: float, width: float, number: str, **look: Any) -> None:
    """Write a number in the middle of a segment of a horizontal bar."""
    axes.text(left + width / 2, row, number, **CENTERED | {"bbox": ON_PAPER} | look)


def write_beside(axes: Axes, x: float, y: float, text: str, **look: Any) -> None:
    """Write a text to the right of the end of a horizontal bar."""
    axes.annotate(text, (x, y), (8, 0), textcoords="offset points", va="center", **look)


def name_rows(axes: Axes, names: Iterable[str], places: Iterable[float] | None = None) -> None:
    """Make axes for horizontal bars: each row has its name, the first on top, and only the x axis a line and a grid.

    places: where the rows stand; 0, 1, 2, … if not given.
    """
    labels = list(names)
    ticks = list(range(len(labels)) if places is None else places)
    axes.set_yticks(ticks, labels)
    axes.set_ylim(max(ticks) + 0.5, min(ticks) - 0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def stacked(rows: Mapping[str, float], x_label: str, row_inches: float = 0.5) -> tuple[RecordFigure, list[Axes]]:
    """A figure with axes for horizontal bars, one below another, with one x axis for all.

    `rows` maps the title of each to its number of bars. Raises InputError when there is nothing to draw.
    """
    if not rows or not all(rows.values()):
        raise InputError(
            "There is nothing to draw yet: it takes at least one panel, and in each at least one step of a rank. "
            "Run the cell above, which measures them, to its end."
        )
    height = 1.3 + sum(0.5 + row_inches * count for count in rows.values())
    size = (12, height)
    ratios = list(rows.values())
    figure, grid = new_figure("", "", len(rows), 1, size, sharex=True, squeeze=False, height_ratios=ratios)
    panels = list(grid[:, 0])
    for axes, title in zip(panels, rows, strict=True):
        axes.set_title(title)
    panels[-1].set_xlabel(x_label)
    return figure, panels


def canvas(size_inches: tuple[float, float], columns: int = 1, **subplots: Any) -> tuple[RecordFigure, Any]:
    """A figure for drawings, and its axes, which show no scales."""
    figure, axes = new_figure("", "", 1, columns, size_inches, **subplots)
    for each in np.atleast_1d(axes):
        each.axis("off")
    return figure, axes
