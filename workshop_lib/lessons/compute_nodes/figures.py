"""Draws machines for 10_compute_nodes: the cores on which ranks run, bound or not, and a small dragonfly network."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from workshop_lib.errors import InputError
from workshop_lib.lessons.start_here.figures import CENTERED
from workshop_lib.notebook.figures import old as figures
from workshop_lib.words import plural

ROOM_FOR_NUMBERS = 24  # most cores per host for which each square has room for its core's number
MOST_ROWS = 64
# The drawn dragonfly's groups, switches per group, nodes per switch.
GROUPS = 5
SWITCHES = 4
NODES = 2


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
    figure = figures.RecordFigure(figsize=(12, 0.9 + 0.5 * sum(heights)), facecolor="white")
    panels = figure.subplots(len(hosts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (host, ranks) in zip(panels, hosts.items(), strict=True):
        _host_panel(axes, host, ranks)
    if title:
        figure.suptitle(title, x=0.02, ha="left", fontsize=figures.FONT_SIZE + 2, weight="bold")
    figure.tight_layout()
    return figure


def _host_panel(axes: Axes, host: str, ranks: list[Mapping[str, Any]]) -> None:
    columns = {core: column for column, core in enumerate(sorted({c for r in ranks for c in r["cores"]}))}
    for row, about in enumerate(ranks):
        color = figures.COLORS[about["rank"] % len(figures.COLORS)]
        for core, column in columns.items():
            allowed = core in about["cores"]
            look = {"fc": color, "ec": "white"} if allowed else {"fc": "none", "ec": figures.GRID}
            axes.add_patch(Rectangle((column, row + 0.1), 0.95, 0.8, **look))
            if allowed and len(columns) <= ROOM_FOR_NUMBERS:
                place = (column + 0.475, row + 0.5)
                axes.text(*place, str(core), bbox=figures.ON_WHITE, **CENTERED | {"fontsize": figures.FONT_SIZE - 2})
    axes.set(xlim=(0, max(8, len(columns))), ylim=(len(ranks), 0))
    axes.set_yticks([row + 0.5 for row in range(len(ranks))], [_label(about) for about in ranks])
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=figures.FONT_SIZE - 1)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{host}: {len(columns)} cores", loc="left", fontsize=figures.FONT_SIZE, color=figures.GRAY)


def _label(about: Mapping[str, Any]) -> str:
    threads = about["threads"]
    suffix = "" if threads is None else f", {plural(threads, 'thread')}"
    return f"rank {about['rank']}{suffix}"


def dragonfly() -> figures.RecordFigure:
    """Draw a small dragonfly: nodes hang on switches, the switches of a group are all linked, and so are all groups.

    A shortest path between nodes of two groups crosses at most three links between switches; one such path is orange.
    """
    figure = figures.RecordFigure(figsize=(9, 6.5), facecolor="white")
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.axis("off")
    axes.set_aspect("equal")
    center = 4 * _around(GROUPS)
    switch = center[:, None] + _around(SWITCHES, np.pi / 4)
    gray = {"color": figures.GRAY, "lw": 1, "zorder": 1}
    orange = {"color": figures.COLORS[1], "lw": 3.5, "zorder": 2}
    gateway = {}
    for one in range(GROUPS):
        for number, other in enumerate(other for other in range(GROUPS) if other != one):
            gateway[one, other] = switch[one, number % SWITCHES]
        for first in range(SWITCHES):
            for second in range(first):
                _line(axes, switch[one, first], switch[one, second], **gray)
    for one, other in gateway:
        if one < other:
            _line(axes, gateway[one, other], gateway[other, one], **gray | {"ls": "--"})
    way = [switch[0, 2], gateway[0, 2], gateway[2, 0], switch[2, 3]]
    for start, end in zip(way, way[1:], strict=False):
        _line(axes, start, end, **orange)
    for at, middle in zip(switch.reshape(-1, 2), np.repeat(center, SWITCHES, axis=0), strict=True):
        for side in np.linspace(-0.25, 0.25, NODES):
            out = (at - middle) @ np.array([[np.cos(side), np.sin(side)], [-np.sin(side), np.cos(side)]])
            _line(axes, at, middle + 1.45 * out, **gray)
            axes.plot(*(middle + 1.45 * out), "s", color=figures.COLORS[0], ms=9, zorder=3)
        axes.plot(*at, "o", color="black", ms=11, zorder=3)
    for number, middle in enumerate(center):
        axes.text(*(1.58 * middle), f"group {number}", **CENTERED)
    handles = [
        figures.entry("node", marker="s", color=figures.COLORS[0], ls="", ms=10),
        figures.entry("switch", marker="o", color="black", ls="", ms=10),
        figures.entry("link", **gray),
        figures.entry("between groups", **gray | {"ls": "--"}),
    ]
    axes.legend(handles=handles, loc="upper left", frameon=False, fontsize=figures.FONT_SIZE)
    axes.set(xlim=(-8, 8), ylim=(-5.8, 6.6))
    return figure


def _around(count: int, turned: float = np.pi / 2) -> np.ndarray:
    """`count` evenly spaced points on the unit circle, the first at the angle `turned` in radians: [count, 2]."""
    angles = turned + 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _line(axes: Axes, start: np.ndarray, end: np.ndarray, **look) -> None:
    axes.plot(*zip(start, end, strict=True), **look)
