"""Draws the cores on which ranks run, bound or not, for 10_compute_nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from workshop_lib.notebook import figures, palette
from workshop_lib.words import plural

ROOM_FOR_NUMBERS = 24  # most cores per host for which each square has room for its core's number


@figures.styled
def binding(abouts: Sequence[Mapping[str, Any]], title: str = "") -> figures.RecordFigure:
    """Draw where ranks may run: one panel per host, one row per rank, one square per core.

    `abouts` is what `team.about()` returned: each rank's host, the numbers of the cores it may use, and its number of
    threads. A panel's columns are the cores that any rank on its host may use.
    """
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
