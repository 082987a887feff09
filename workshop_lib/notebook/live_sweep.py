"""A sweep in a notebook: a curve that fills in as its runs end, with a bar, the time left, and a Stop button."""

import base64
import html
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ipywidgets as widgets
import numpy as np
import pandas as pd

from workshop_lib.machine import catalogue
from workshop_lib.machine.cores import usable_cores
from workshop_lib.machine.emulation import session as emulation
from workshop_lib.notebook import figures
from workshop_lib.notebook.live import REDRAW_EVERY_S, Dashboard
from workshop_lib.notebook.results import curves, records
from workshop_lib.notebook.results import sweep as sweeps
from workshop_lib.notebook.widgets import has_widgets
from workshop_lib.ranks import RankError
from workshop_lib.training.progress import Progress
from workshop_lib.words import duration, plural

PARTS = 1000  # steps of the bar
PACE_FROM = 0.1  # share of a run after which its pace says how long the rest takes


def sweep(
    start: Callable,
    rank_counts: list[int],
    options: list | Callable[[int], list],
    repeats: int = 1,
    timeout_s: float = 3600.0,
    restart: bool = False,
) -> Iterator[dict]:
    """Yield the records of a sweep as its runs end; see results.sweep.sweep. Its Stop button ends it.

    Without widgets, each run prints a line.
    """
    view = SweepDashboard(rank_counts) if has_widgets() else sweeps.SweepText(runs_show=False)
    try:
        yield from sweeps.sweep(start, rank_counts, options, repeats, timeout_s, restart=restart, view=view)
    except RankError:
        if not view.stop_requested:
            raise
        # The ranks did not react to Stop in time and were given up. What was measured before stays.


class SpeedRun(NamedTuple):
    """A run of a sweep: whose it is, on how many ranks, and how fast.

    disturbed: whether other programs used its cores. machine: where it was emulated; None if it was measured.
    """

    name: str
    ranks: int
    samples_per_s: float
    disturbed: bool = False
    machine: str | None = None


@figures.styled
def speeds(runs: list[SpeedRun], rank_counts: list[int]) -> figures.RecordFigure:
    """Samples per second against ranks: a mark for each run, a line through each backend's medians.

    Runs beside other programs are pale. The dotted line is perfect scaling of the first backend's runs on one rank, and
    it sets the scale, so that the figure keeps its scale while it fills in.
    """
    figure, axes = figures.new_figure(size_inches=(9, 4))
    table = pd.DataFrame(runs, columns=SpeedRun._fields)
    for name, own in table.groupby("name", sort=False):
        look = figures.style_of(str(name))
        medians = own.groupby("ranks")["samples_per_s"].median()
        axes.plot(medians.index, medians, **look | {"marker": ""}, label=name)
        strength = np.where(own["disturbed"], 0.3, 1.0)
        axes.scatter(own["ranks"], own["samples_per_s"], color=look["color"], marker=look["marker"], alpha=strength)
        if name == table["name"][0] and 1 in medians:
            most = max(rank_counts)
            axes.plot([0, most], [0, most * medians[1]], **figures.PERFECT, label=f"perfect scaling of {name}")
    across, up = "ranks", "samples/s"
    if table["machine"].any():
        across, up = "emulated devices", "samples/s (emulated)"
    axes.set(xlabel=across, ylabel=up, xlim=(0, 1.06 * max(rank_counts)))
    axes.set_ylim(bottom=0)
    figures.ticks_at(axes.xaxis, rank_counts)
    return figure


class SweepDashboard(Dashboard):
    """The dashboard of a sweep, which is also the view of each of its runs."""

    def __init__(self, rank_counts: list[int]):
        super().__init__(max(rank_counts))
        self.rank_counts = rank_counts
        self.runs: list[SpeedRun] = []
        self.machine = ""  # where the ranks are emulated
        self.number = 1
        self.total = 0
        self.ranks = 1
        self.later_s: list[float] = []  # the expected times of the current run and those after it
        self.elapsed_s = 0.0  # of the current run
        self.began_s = time.monotonic()
        self.next_redraw_s = 0.0
        self.curve = widgets.HTML()

    def begin(self, number: int, total: int, n: int) -> "SweepDashboard":
        self.progress = Progress()
        self.number = number
        self.total = total
        self.ranks = n
        self.next_redraw_s = 0.0
        if self.box is None:
            self.show_with(self.curve)
            self._draw()
        return self

    def update(self, data: list[Any], elapsed_s: float, running: list[int]) -> None:
        """Show how far the current run is."""
        self.progress.take(data)
        self.elapsed_s = elapsed_s
        if elapsed_s < self.next_redraw_s:
            return
        self.next_redraw_s = elapsed_s + REDRAW_EVERY_S
        done = (self.number - 1 + self.progress.done / self.progress.total) / self.total
        self.show_bar(round(PARTS * done), PARTS)
        info = self.progress.info or {}
        self.machine = info.get("machine") or self.machine
        emulated = f" emulated on {catalogue.label(self.machine)}" if self.machine else ""
        state = f"run {self.number} of {self.total}, on {plural(self.ranks, 'rank')}{emulated}"
        self.status.value = self._status(state)

    def _status(self, state: str) -> str:
        parts = [duration(time.monotonic() - self.began_s), state]
        if not self.progress.done and self.progress.phase:
            parts.append(self.progress.phase)
        left_s = self._left_s()
        if left_s is not None and not self.ended:
            parts.append(f"about {duration(max(1.0, left_s))} left")
        return " · ".join(parts)

    def _left_s(self) -> float | None:
        """The estimated time left; None if nobody knows, or if the current run takes longer than expected.

        A run's own pace counts as soon as it is known.
        """
        if not self.later_s:
            return None
        share = self.progress.done / self.progress.total
        current_s = self.later_s[0] - self.elapsed_s
        if share >= PACE_FROM:
            current_s = self.elapsed_s / share * (1 - share)
        return current_s + sum(self.later_s[1:]) if current_s >= 0 else None

    def close(self) -> None:
        """Do nothing: a run has ended, but not the sweep."""

    def measured(self, run: sweeps.MeasuredRun) -> None:
        what = run.record["what"]
        speed = curves.samples_per_s(run.record)
        if speed is not None:
            name = records.name_of(what)
            self.runs.append(SpeedRun(name, what["world_size"], speed, bool(run.warning), what["machine"]))
        self.later_s = run.later_s
        self.show_bar(round(PARTS * run.number / run.total), PARTS)
        self._draw()

    def _draw(self) -> None:
        figure = speeds(self.runs, self.rank_counts)
        image = base64.b64encode(figure.png()).decode()
        words = html.escape(figure.description())
        source = f"data:image/png;base64,{image}"
        self.curve.value = f'<img class="workshop-figure" alt="{words}" style="max-width: 100%" src="{source}">'

    def end(self) -> None:
        if self.box is None:
            return
        self.ended = True
        word = "done" if len(self.runs) == self.total else "ended by an error"
        if self.stop_requested:
            word = "stopped"
        status = self._status(f"{len(self.runs)} of {plural(self.total, 'run')} · {word}")
        self.leave(word, status, self.curve.value, *self._note())

    def _note(self) -> list[str]:
        """A sentence on where the sweep was emulated, or on what other programs did to it, if they did anything."""
        if machines := sorted({run.machine for run in self.runs if run.machine}):
            return [emulation.label(*machines)]
        runs = pd.DataFrame(self.runs, columns=SpeedRun._fields)
        runs = runs.rename(columns={"name": "backend", "ranks": "world_size"})
        medians = runs.groupby(["backend", "world_size"], as_index=False)["samples_per_s"].median()
        doubts = curves.doubts(medians.assign(oversubscribed=medians["world_size"] > usable_cores()))
        disturbed = sum(run.disturbed for run in self.runs)
        if disturbed:
            doubts.append(f"Other programs used the cores during {disturbed} of {plural(len(self.runs), 'run')}.")
        return doubts
