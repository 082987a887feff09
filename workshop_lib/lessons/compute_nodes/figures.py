"""Draws machines for 10_compute_nodes: the cores on which ranks run, bound or not, and a small dragonfly network."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from workshop_lib.errors import InputError
from workshop_lib.notebook import figures, palette
from workshop_lib.words import plural

ROOM_FOR_NUMBERS = 24  # most cores per host for which each square has room for its core's number
MOST_ROWS = 64
# The drawn dragonfly's groups, switches per group, nodes per switch.
GROUPS = 5
SWITCHES = 4
NODES = 2


@figures.styled
def binding(abouts: Sequence[Mapping[str, Any]], title: str = "") -> figures.RecordFigure:
    """Draw where ranks may run: one panel per host, one row per rank, one square per core.

    `abouts` is what `team.about()` returned: each rank's host, the numbers of the cores it may use, and its number of
    threads. A panel's columns are the cores that any rank on its host may use. Raises InputError when there are no
    ranks, or more than MOST_ROWS.
    """
    if not 0 < len(abouts) <= MOST_ROWS:
        raise InputError(f"there are {len(abouts)} ranks to draw; give 1 to {MOST_ROWS} of them.")
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    for about in abouts:
        hosts.setdefault(about["host"], []).append(about)
    heights = [len(ranks) + 1.2 for ranks in hosts.values()]
    size = 12, 0.9 + 0.5 * sum(heights)
    figure, panels = figures.new_figure(title, "", len(hosts), 1, size, squeeze=False, height_ratios=heights)
    for axes, (host, ranks) in zip(panels[:, 0], hosts.items(), strict=True):
        _host_panel(axes, host, ranks)
    return figure


def _host_panel(axes: Axes, host: str, ranks: list[Mapping[str, Any]]) -> None:
    columns = {core: column for column, core in enumerate(sorted({c for r in ranks for c in r["cores"]}))}
    for row, about in enumerate(ranks):
        color = palette.COLORS[about["rank"] % len(palette.COLORS)]
        for core, column in columns.items():
            allowed = core in about["cores"]
            look = {"fc": color, "ec": palette.PAPER} if allowed else {"fc": "none", "ec": palette.GRID}
            axes.add_patch(Rectangle((column, row + 0.1), 0.95, 0.8, **look))
            if allowed and len(columns) <= ROOM_FOR_NUMBERS:
                place = (column + 0.475, row + 0.5)
                axes.text(*place, str(core), bbox=figures.ON_PAPER, fontsize=figures.SMALL, **figures.CENTERED)
    axes.set_xlim(0, max(8, len(columns)))
    figures.name_rows(axes, map(_label, ranks), (row + 0.5 for row in range(len(ranks))))
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(f"{host}: {plural(len(columns), 'core')}")


def _label(about: Mapping[str, Any]) -> str:
    threads = about["threads"]
    suffix = "" if threads is None else f", {plural(threads, 'thread')}"
    return f"rank {about['rank']}{suffix}"


@figures.styled
def dragonfly() -> figures.RecordFigure:
    """Draw a small dragonfly: nodes hang on switches, the switches of a group are all linked, and so are all groups.

    A shortest path between nodes of two groups crosses at most three links between switches; one of these is orange.
    """
    figure, axes = figures.canvas((9, 6.5))
    axes.set_aspect("equal")
    center = 4 * _around(GROUPS)
    switch = center[:, None] + _around(SWITCHES, np.pi / 4)
    link = {"color": palette.GRAY, "linewidth": 1, "zorder": 1, "marker": "", "linestyle": "-", "label": "link"}
    between = link | {"linestyle": "--", "label": "link between groups"}
    path = link | {"color": palette.VERMILION, "linewidth": 3.5, "zorder": 2, "label": "one of the longest paths"}
    node = {"marker": "s", "color": palette.BLUE, "linestyle": "", "zorder": 3, "label": "node"}
    crossing = {"marker": "o", "color": palette.INK, "linestyle": "", "zorder": 3, "label": "switch"}
    gateway = {}
    for one in range(GROUPS):
        for number, other in enumerate(other for other in range(GROUPS) if other != one):
            gateway[one, other] = switch[one, number % SWITCHES]
        for first in range(SWITCHES):
            for second in range(first):
                _line(axes, switch[one, first], switch[one, second], **link)
    for one, other in gateway:
        if one < other:
            _line(axes, gateway[one, other], gateway[other, one], **between)
    way = [switch[0, 2], gateway[0, 2], gateway[2, 0], switch[2, 3]]
    for start, end in zip(way, way[1:], strict=False):
        _line(axes, start, end, **path)
    for at, middle in zip(switch.reshape(-1, 2), np.repeat(center, SWITCHES, axis=0), strict=True):
        for side in np.linspace(-0.25, 0.25, NODES):
            out = (at - middle) @ np.array([[np.cos(side), np.sin(side)], [-np.sin(side), np.cos(side)]])
            _line(axes, at, middle + 1.45 * out, **link)
            axes.plot(*(middle + 1.45 * out), **node)
        axes.plot(*at, **crossing)
    for number, middle in enumerate(center):
        axes.text(*(1.72 * middle), f"group {number}", **figures.CENTERED)
    axes.set(xlim=(-8, 8), ylim=(-6, 7.3))
    return figure


def _around(count: int, turned: float = np.pi / 2) -> np.ndarray:
    """`count` evenly spaced points on the unit circle, the first at the angle `turned` in radians: [count, 2]."""
    angles = turned + 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _line(axes: Axes, start: np.ndarray, end: np.ndarray, **look) -> None:
    axes.plot(*zip(start, end, strict=True), **look)
