"""Draws the measurements of 09_feeding_the_ranks: which bytes each rank requests, and who waits for them."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from workshop_lib.machine.cores import usable_cores
from workshop_lib.notebook import figures, palette
from workshop_lib.notebook.prediction import Question
from workshop_lib.words import plural

MB = 1e6
BYTES = {
    "asked for by the busiest rank": figures.Look(palette.GREEN, ""),
    "asked for by all ranks": figures.Look(palette.PURPLE, "//"),
    "from the storage, when cold": figures.Look(palette.LIGHT_BLUE, ".."),
}
ONCE = {"color": palette.GRAY, "linestyle": (0, (2, 2)), "linewidth": 1.5}
SPENT = {
    "until the first batch": figures.STEP_LOOKS["Allreduce"],
    "waiting for input": figures.STEP_LOOKS["waiting"],
    "computing": figures.STEP_LOOKS["computing"],
}


@figures.styled
def feeding_ways(rows: Iterable[Mapping[str, Any]]) -> figures.RecordFigure:
    """Draw the time (left, in ms) and data (right, in MB) of each way, from rows of `feeding.measure`.

    All rows are for one number of ranks. Points are medians, and bars go from the fastest to the slowest round. Points
    are hollow if there were more ranks than this machine has cores.
    """
    rows = list(rows)
    names = list(dict.fromkeys(row["way"] for row in rows))
    count = rows[0]["ranks"]
    file_bytes = rows[0]["file_bytes"]
    repeats = len(rows[0]["seconds"])
    hollow = count > usable_cores()
    caption = (
        f"a file of {file_bytes / MB:.0f} MB; median of {repeats} rounds, bars from the fastest to the "
        "slowest; the slowest rank counts"
    )
    title = f"Getting the rows to {plural(count, 'rank')}"
    figure, (time, size) = figures.new_figure(title, caption, columns=2, sharey=True)
    for number, (cold, beside) in enumerate(((True, -0.13), (False, 0.13))):
        look = figures.style(number) | {"linestyle": "", "label": "cold" if cold else "warm"}
        for row in (row for row in rows if row["cold"] == cold):
            ms = 1e3 * np.array(row["seconds"])
            at = names.index(row["way"]) + beside
            figures.draw_points(time, at, (np.median(ms), ms.min(), ms.max()), hollow, across=True, **look)
    _draw_bytes(size, [row for row in rows if row["cold"]], names, file_bytes)
    time.set(xscale="log", xlabel="time (ms)")
    for axes in (time, size):
        figures.name_rows(axes, names)
    size.tick_params(labelleft=False)
    every_s = [seconds for row in rows for seconds in row["seconds"]]
    figures.log_ticks(time.xaxis, "{x:g}", (1, 2, 5) if max(every_s) < 100 * min(every_s) else (1,))
    size.set(xlabel="data (MB)")
    return figure


def _draw_bytes(axes: Axes, rows: list[Mapping[str, Any]], names: list[str], file_bytes: int) -> None:
    for row in rows:
        if row["asked_bytes"] is None or row["storage_bytes"] is None:
            continue  # this system does not count
        amounts = (max(row["asked_bytes"]), sum(row["asked_bytes"]), median(row["storage_bytes"]))
        for number, (value, (label, look)) in enumerate(zip(amounts, BYTES.items(), strict=True)):
            place = names.index(row["way"]) + 0.26 * (number - 1)
            figures.draw_bar(axes, place, 0, value / MB, look, 0.24, label)
    axes.axvline(file_bytes / MB, **ONCE, zorder=3, label="the file, once")


def compare_storage(guess: Question, rows: Iterable[Mapping[str, Any]], way: str) -> figures.RecordFigure | None:
    """A figure of a guess and the MB that a way fetched from the storage, or None, with a line that says why."""
    [stored] = [row["storage_bytes"] for row in rows if row["way"] == way and row["cold"]]
    if stored is None:
        print("This system doesn't count what comes from the storage.")
        return None
    if max(stored) == 0:
        print("Nothing came from the storage: this file system lives in memory, or doesn't forget when asked.")
        return None
    return guess.compare(nbytes / MB for nbytes in stored)


@figures.styled
def feeding_shares(runs: dict[str, np.ndarray], title: str) -> figures.RecordFigure:
    """Draw how an epoch spends its time, one bar per way of feeding it.

    runs: {way: seconds [repeats, 3]}, with the three parts in SPENT's order. Each bar shows the run whose total is the
    median; its error bar goes from the shortest total to the longest.
    """
    repeats = len(next(iter(runs.values())))
    caption = f"median of {repeats} runs, bars from the fastest to the slowest"
    figure, axes = figures.new_figure(title, caption, size_inches=(12, 2.4 + 0.8 * len(runs)))
    for at, seconds in enumerate(runs.values()):
        totals = seconds.sum(axis=1)
        middle = np.argsort(totals)[(len(totals) - 1) // 2]
        left = 0.0
        for part, (name, look) in zip(seconds[middle], SPENT.items(), strict=True):
            figures.draw_bar(axes, at, left, part, look, 0.6, name)
            left += part
        bars = [[left - totals.min()], [totals.max() - left]]
        axes.errorbar(left, at, xerr=bars, fmt="none", ecolor=palette.INK)
        figures.write_beside(axes, totals.max(), at, f"{left:.2f} s")
    longest = max(seconds.sum(axis=1).max() for seconds in runs.values())
    axes.set(xlabel="time (s)", xlim=(0, 1.12 * longest))
    figures.name_rows(axes, runs)
    return figure
