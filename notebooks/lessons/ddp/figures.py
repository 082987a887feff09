"""Draws what ranks do in a step of 05_ddp, as bars over time: the backward pass, its allreduces, and who waits."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
from matplotlib.axes import Axes

from workshop_lib.machine import catalogue
from workshop_lib.notebook import figures, palette
from workshop_lib.training.timeline import KINDS, Timeline

BACKWARD = figures.Look(palette.BLUE, "")
MESSAGE = figures.Look(palette.YELLOW, "//")
TIMELINE_LOOKS = dict(zip(KINDS, figures.STEP_LOOKS.values(), strict=True))
BORDER = {"color": palette.INK, "linestyle": (0, (4, 2))}


class BackwardTimes(TypedDict):
    """One step of one rank, in milliseconds since the start of its backward pass."""

    backward: float  # when the backward pass ended
    ready: Sequence[float]  # when each gradient was ready
    messages: Sequence[Sequence[float]]  # (sent, arrived) of each allreduce, in order
    end: float  # when all gradients were averaged


@figures.styled
def overlap(panels: Mapping[str, Sequence[BackwardTimes]], emulated_on: str = "") -> figures.RecordFigure:
    """Draw the backward pass and its allreduces, one step per panel, on a common time axis.

    `panels` maps each title to one entry per rank. emulated_on: the machine whose times they are, if they weren't
    measured. Raises InputError when there is nothing to draw.
    """
    right = 1.16 * max((times["end"] for ranks in panels.values() for times in ranks), default=0.0)
    rows = {title: 1 + max((len(times["messages"]) for times in ranks), default=0) for title, ranks in panels.items()}
    heights = {title: len(ranks) * (rows[title] + 1.1) for title, ranks in panels.items()}
    figure, every = figures.stacked(heights, milliseconds("since the backward pass began", emulated_on), 0.3)
    for axes, (title, ranks) in zip(every, panels.items(), strict=True):
        _backwards(axes, ranks, rows[title])
        axes.set_xlim(-0.01 * right, right)
    return figure


def durations_ms(by_rank: Sequence[Sequence[Mapping[str, BackwardTimes]]]) -> dict[str, np.ndarray]:
    """Milliseconds until the slowest rank was done, by title: one value per turn. Takes by_rank[rank][turn][title]."""
    turns = list(zip(*by_rank, strict=True))
    return {title: np.array([max(times[title]["end"] for times in turn) for turn in turns]) for title in turns[0][0]}


def typical_overlap(
    by_rank: Sequence[Sequence[Mapping[str, BackwardTimes]]], ranks: int = 2, emulated_on: str = ""
) -> figures.RecordFigure:
    """Draw each way's turn of median duration, on the first `ranks` ranks, from what `backward.compare` measured."""
    middle = {title: int(np.argsort(ms)[len(ms) // 2]) for title, ms in durations_ms(by_rank).items()}
    panels = {title: [turns[at][title] for turns in by_rank[:ranks]] for title, at in middle.items()}
    return overlap(panels, emulated_on)


def saved_percent(by_rank: Sequence[Mapping[float, Sequence]]) -> dict[float, dict[str, float]]:
    """The share of time that each other way saves against the first one, in percent, as [GB/s][title].

    Takes what `backward.compare` measured, as by_rank[rank][GB/s][turn][title].
    """
    figures.require_data(by_rank)
    saved = {}
    for gb_per_s in by_rank[0]:
        taken = durations_ms([rank[gb_per_s] for rank in by_rank])
        first, *others = taken
        saved[gb_per_s] = {title: float(100 - 100 * np.median(taken[title] / taken[first])) for title in others}
    return saved


@figures.styled
def saved(by_rank: Sequence[Mapping[float, Sequence]], emulated_on: str) -> figures.RecordFigure:
    """Draw `saved_percent` against the network's bandwidth, a line for each way to average."""
    percent = saved_percent(by_rank)
    text = f"All times are emulated on {catalogue.label(emulated_on)}, with other bandwidths. None was measured."
    figure, axes = figures.new_figure("What does overlap save?", text)
    for number, title in enumerate(next(iter(percent.values()))):
        axes.plot(list(percent), [row[title] for row in percent.values()], **figures.style(number), label=title)
    axes.set(xlabel="bandwidth of the network (GB/s)", ylabel="backward pass and averaging, saved (%)")
    axes.set_xscale("log")
    figures.log_ticks(axes.xaxis)
    return figure


def milliseconds(since: str, emulated_on: str) -> str:
    """The label of an axis of time, which says whether the times are emulated."""
    return f"milliseconds {since}" + (f" (emulated on {catalogue.label(emulated_on)})" if emulated_on else "")


def _backwards(axes: Axes, ranks: Sequence[BackwardTimes], rows: int) -> None:
    labels = []
    places = []
    computing = "backward pass; a white line where a gradient is ready"
    for rank, times in enumerate(ranks):
        top = rank * (rows + 1.1)
        end = times["end"]
        messages = times["messages"]
        figures.draw_bar(axes, top, 0, times["backward"], BACKWARD, 0.8, label=computing)
        axes.vlines(times["ready"], top - 0.4, top + 0.4, color=palette.PAPER, lw=1.4)
        for number, (sent, arrived) in enumerate(messages):
            place = top + 1 + number
            figures.draw_bar(axes, place, sent, arrived - sent, MESSAGE, 0.8, "allreduce, from sent to arrived")
        axes.vlines(end, top - 0.5, top + rows - 0.5, linewidth=2, **BORDER, label="all gradients averaged")
        figures.write_beside(axes, end, top - 0.1, f"{end:.0f} ms", weight="bold")
        buckets = [f"message {number}" for number in range(1, 1 + len(messages))]
        labels += [f"rank {rank}: backward pass", *(buckets if len(messages) != 1 else ["all gradients"])]
        places += [top + row for row in range(1 + len(messages))]
    figures.name_rows(axes, labels, places)


@figures.styled
def steps(panels: Mapping[str, Timeline]) -> figures.RecordFigure:
    """Draw what each rank did in its steps, one timeline per panel, on a common time axis.

    `panels` maps titles to timelines. The percentage at the end of a row is the share of the time that this rank spent
    waiting. Raises InputError when there is nothing to draw.
    """
    right_ms = 1.13e3 * max((timeline.seconds for timeline in panels.values()), default=0.0)
    rows = {title: len(timeline.pieces) if timeline.steps else 0 for title, timeline in panels.items()}
    figure, every = figures.stacked(rows, "milliseconds since the first of these steps began")
    for axes, timeline in zip(every, panels.values(), strict=True):
        _bands(axes, timeline)
        axes.set_xlim(0, right_ms)
    return figure


def _bands(axes: Axes, timeline: Timeline) -> None:
    zero_s = timeline.steps[0][1]
    for rank, (pieces, shares) in enumerate(zip(timeline.pieces, timeline.shares(), strict=True)):
        for kind, start_s, end_s in pieces:
            left, width = 1e3 * (start_s - zero_s), 1e3 * (end_s - start_s)
            figures.draw_bar(axes, rank, left, width, TIMELINE_LOOKS[kind], label=kind)
        end = 1e3 * (pieces[-1].end_s - zero_s)
        figures.write_beside(axes, end, rank, f"waits {shares['waiting']:.0%}", weight="bold")
    for _, start_s in timeline.steps:
        axes.axvline(1e3 * (start_s - zero_s), linewidth=1.2, **BORDER, label="a step begins")
    figures.name_rows(axes, (f"rank {rank}" for rank in range(len(timeline.pieces))))
