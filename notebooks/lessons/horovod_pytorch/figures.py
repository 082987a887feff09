"""Measures Horovod's steps for 03_horovod_pytorch, in separate processes, and reads, counts and draws its timeline.

Rank 0 records the timeline in a file in Chrome's trace format. A tensor is a "process" there, and each of Horovod's
activities on it has an event for its begin ("B") and one for its end ("E"), in microseconds. The file may also mark
when a rank announced the tensor ("X", named by the rank), and when a cycle of the background thread began
("CYCLE_START").
"""

import json
import os
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workshop_lib.notebook import figures, palette, profile
from workshop_lib.paths import BUILD
from workshop_lib.ranks.launch import scripts

NEGOTIATION = "negotiation"
QUEUE = "queue"
COPY = "copy"
TRANSFER = "allreduce"
LOOKS = {  # in the order of a tensor's phases
    NEGOTIATION: figures.Look(palette.YELLOW, "//"),
    QUEUE: figures.Look(palette.TINTS[6], ""),
    COPY: figures.Look(palette.PURPLE, ".."),
    TRANSFER: figures.Look(palette.BLUE, ""),
}
LEGEND = {
    NEGOTIATION: "negotiation: not all ranks have it",
    QUEUE: "queue: agreed on, not yet sent",
    COPY: "copy into or out of the fusion buffer",
    TRANSFER: "allreduce",
}


class TensorSpan(NamedTuple):
    """One phase of one tensor in one step. Times are in milliseconds since the recording's first event."""

    tensor: str
    step: int  # counted from 0
    phase: str
    start_ms: float
    end_ms: float


class Ready(NamedTuple):
    """When rank 0 learned that `rank` has the tensor."""

    tensor: str
    step: int
    rank: int
    at_ms: float


@dataclass
class HorovodTimeline:
    spans: list[TensorSpan] = field(default_factory=list)
    ready: list[Ready] = field(default_factory=list)
    cycles_ms: list[float] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return 1 + max((span.step for span in self.spans), default=-1)

    def of_step(self, step: int) -> "HorovodTimeline":
        """The timeline of one step, with its first event at 0 ms."""
        spans = [span for span in self.spans if span.step == step]
        start = min(s.start_ms for s in spans)
        end = max(s.end_ms for s in spans)
        return HorovodTimeline(
            [s._replace(start_ms=s.start_ms - start, end_ms=s.end_ms - start) for s in spans],
            [r._replace(at_ms=r.at_ms - start) for r in self.ready if r.step == step],
            [cycle - start for cycle in self.cycles_ms if start <= cycle <= end],
        )

    def typical(self) -> "HorovodTimeline":
        """The timeline of the step of median length."""
        steps = [self.of_step(step) for step in range(self.steps)]
        return sorted(steps, key=lambda step: max(span.end_ms for span in step.spans))[len(steps) // 2]

    def allreduces(self) -> list[tuple[float, float]]:
        """The (start, end) of each allreduce in milliseconds; tensors that were fused into one allreduce count once."""
        merged: list[tuple[float, float]] = []
        for start, end in sorted((s.start_ms, s.end_ms) for s in self.spans if s.phase == TRANSFER):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged


@dataclass(frozen=True)
class Measured:
    """Horovod's steps with some settings: milliseconds per step, and the timeline of fifteen more steps.

    In those fifteen, `late_rank` started each step `late_ms` late.
    """

    step_ms: list[float]
    timeline: HorovodTimeline
    late_rank: int = 0
    late_ms: float = 0.0

    @property
    def median_ms(self) -> float:
        return statistics.median(self.step_ms)


def measure(name: str, *settings: str, one_late: bool = False) -> Measured:
    """Time, then record steps of a network with 16 small tensors, in new processes.

    `settings` are environment variables of these processes, each as "HOROVOD_NAME=value". one_late: whether one rank,
    drawn by lot, starts each recorded step 20 to 40 ms late. Raises RankError when the processes fail or hang.
    """
    sizes = profile.current()
    out = BUILD / "horovod_steps" / name.replace(" ", "_")
    out.parent.mkdir(parents=True, exist_ok=True)
    launch = [*scripts.mpiexec(sizes.ranks), "env", "HOROVOD_TIMELINE=DYNAMIC", *settings]
    module = "lessons.horovod_pytorch.horovod_steps"
    arguments = [out, 3 * sizes.steps, int(one_late)]
    scripts.run(*launch, sys.executable, "-m", module, *arguments, timeout_s=sizes.timeout_s)
    measured = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    return Measured(timeline=read(out.with_suffix(".timeline.json")), **measured)


def compare(measured: Mapping[str, Measured]) -> pd.DataFrame:
    """A table of step times with each setting: their median, the middle 80 %, and the number of allreduces per step."""
    rows = {}
    for name, each in measured.items():
        low, middle, high = np.percentile(each.step_ms, [10, 50, 90])
        allreduces = len(each.timeline.allreduces()) / each.timeline.steps
        rows[name] = [f"{middle:.2f}", f"{low:.2f} to {high:.2f}", f"{allreduces:.1f}"]
    columns = ["median step in ms", "80 % of the steps", "allreduces per step"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def read(path: str | os.PathLike) -> HorovodTimeline:
    """Read the timeline from this file."""
    events = json.loads(Path(path).read_text(encoding="utf-8"))
    zero_us = min((event["ts"] for event in events if "ts" in event), default=0)
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("ph") == "M" and "name" in e["args"]}
    timeline = HorovodTimeline()
    tensors = dict[int, _Tensor]()
    for event in events:
        at_ms = (event["ts"] - zero_us) / 1000 if "ts" in event else 0.0
        if event["ph"] == "i":
            timeline.cycles_ms.append(at_ms)
        elif event["ph"] in "BEX":
            tensor = tensors.setdefault(event["pid"], _Tensor(names[event["pid"]]))
            tensor.take(event, at_ms, timeline)
    return timeline


class _Tensor:
    """The open activities of one tensor while its events are read in order."""

    def __init__(self, name: str):
        self.name = name.removeprefix("allreduce.")
        self.step = -1
        self.open: list[str] = []
        self.since_ms = 0.0
        self.finished = True

    def take(self, event: dict, at_ms: float, timeline: HorovodTimeline) -> None:
        if event["ph"] == "X":
            timeline.ready.append(Ready(self.name, self.step, int(event["name"]), at_ms))
            return
        if self.step >= 0 and at_ms > self.since_ms and (phase := self._phase()):
            timeline.spans.append(TensorSpan(self.name, self.step, phase, self.since_ms, at_ms))
        if event["ph"] == "B":
            self.step += event["name"].startswith("NEGOTIATE")
            self.open.append(event["name"])
            self.finished = False
        elif self.open:
            self.finished = not self.open.pop().startswith("NEGOTIATE") and not self.open
        self.since_ms = at_ms

    def _phase(self) -> str | None:
        """The phase since the last event: between activities the tensor is queued; None if it is finished."""
        if not self.open:
            return None if self.finished else QUEUE
        name = self.open[-1]
        if name.startswith("NEGOTIATE"):
            return NEGOTIATION
        if name.startswith("MEMCPY"):
            return COPY
        return TRANSFER if "_" in name and name.endswith("ALLREDUCE") else QUEUE


@figures.styled
def draw(panels: Mapping[str, HorovodTimeline]) -> figures.RecordFigure:
    """Draw one step per panel on a common time axis, with one row per tensor, the earliest on top.

    `panels` maps titles to timelines. A number in a negotiation is a rank, drawn at the time when rank 0 learned that
    this rank has the tensor. A tick at the top is the start of a cycle. Raises InputError when there is nothing to
    draw.
    """
    right_ms = max((span.end_ms for timeline in panels.values() for span in timeline.spans), default=0.0)
    tensors: dict[str, list[str]] = {}
    for title, timeline in panels.items():
        by_start = sorted(timeline.spans, key=lambda span: (span.start_ms, span.end_ms))
        tensors[title] = list(dict.fromkeys(span.tensor for span in by_start))
    rows = {title: len(names) + 1.1 if names else 0 for title, names in tensors.items()}
    figure, every = figures.stacked(rows, "milliseconds since the first tensor was announced", row_inches=0.25)
    for axes, (title, timeline) in zip(every, panels.items(), strict=True):
        _tensors(axes, timeline, tensors[title])
        axes.set_xlim(-0.01 * right_ms, 1.02 * right_ms)
    return figure


def _tensors(axes: Axes, timeline: HorovodTimeline, tensors: list[str]) -> None:
    for span in timeline.spans:
        row = tensors.index(span.tensor)
        width = span.end_ms - span.start_ms
        figures.draw_bar(axes, row, span.start_ms, width, LOOKS[span.phase], 0.8, LEGEND[span.phase])
    mark = {"linestyle": "", "color": palette.INK}
    has_it = "the rank with this number has it"
    for ready in timeline.ready:
        place = ready.at_ms, tensors.index(ready.tensor)
        axes.plot(*place, marker=f"${ready.rank}$", markersize=7, **mark, label=has_it)
    axes.plot(timeline.cycles_ms, [-0.9] * len(timeline.cycles_ms), marker="|", **mark, label="start of a cycle")
    figures.name_rows(axes, tensors)
    axes.set_ylim(len(tensors) - 0.4, -1.5)
    axes.tick_params(axis="y", labelsize=figures.SMALL)
