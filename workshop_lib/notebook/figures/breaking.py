"""Figures of 13_when_training_breaks: how often to save, and a training that loses ranks."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from workshop_lib.notebook.figures import GREY, VERMILION, RecordFigure, Style, draw_legend, log_ticks, new_figure
from workshop_lib.ranks.dojo import Score
from workshop_lib.scaling import checkpoints

FAILURES_PER_JOB = 30  # of a simulated job, on average


def checkpoint_interval(
    save_s: float, mtbf_s: float, restart_s: float, jobs: int, measured: Sequence[tuple[float, float]] = ()
) -> RecordFigure:
    """The useful share against the interval [s]: expected, of simulated jobs, and of measured (interval, share)."""
    best = checkpoints.young(save_s, mtbf_s)
    intervals = np.geomspace(best / 20, best * 20, 200)
    caption = f"a save takes {save_s:g} s, a restart {restart_s:g} s; a failure comes every {mtbf_s:,g} s on average"
    figure, style = new_figure("How often to save?", caption), Style.number(0)
    axes = figure.subplots()
    work_s = FAILURES_PER_JOB * mtbf_s
    for interval in np.geomspace(best / 16, best * 16, 9):
        costs_s = save_s, mtbf_s, restart_s
        shares = [checkpoints.simulated_share(work_s, interval, *costs_s, seed=job) for job in range(jobs)]
        axes.plot([interval] * jobs, shares, ".", color=GREY, alpha=0.5)
    expected = [checkpoints.useful_share(interval, save_s, mtbf_s, restart_s) for interval in intervals]
    axes.plot(intervals, expected, color=style.colour, linewidth=2)
    handles = [Line2D([], [], color=style.colour, linewidth=2, label="expected")]
    handles.append(Line2D([], [], marker=".", linestyle="", color=GREY, label="simulated jobs"))
    for (name, rule), look in zip((("Young", checkpoints.young), ("Daly", checkpoints.daly)), ("--", ":"), strict=True):
        at = rule(save_s, mtbf_s)
        axes.axvline(at, color=GREY, linestyle=look)
        handles.append(Line2D([], [], color=GREY, linestyle=look, label=f"{name}: {float(f'{at:.3g}'):,g} s"))
    if measured:
        axes.plot(*zip(*measured, strict=True), "s", color=VERMILION, markersize=9)
        handles.append(Line2D([], [], marker="s", linestyle="", color=VERMILION, label="measured here"))
    axes.set(xlabel="seconds of training between two checkpoints", ylabel="useful share of the time")
    axes.set(xscale="log", ylim=(0, 1))
    log_ticks(axes.xaxis)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    draw_legend(figure, handles[:2], handles[2:])
    return figure


def progress(scores: Mapping[str, Score]) -> RecordFigure:
    """Steps done against seconds, by name, without faults and with them; a fault is a cross."""
    figure = new_figure("Trainings in the dojo", "solid: with faults (crosses); dotted: the same training without")
    axes = figure.subplots()
    handles = []
    for number, (name, score) in enumerate(scores.items()):
        style = Style.number(number)
        for run, line in ((score.free, ":"), (score.faulty, "-")):
            at_s = np.array(run.steps)
            axes.plot(at_s[:, 0] - at_s[0, 0], at_s[:, 1], color=style.colour, linestyle=line, linewidth=2)
        began_s = score.faulty.steps[0][0]
        hits = [(at_s - began_s, fault.step) for at_s, fault in score.faulty.faults]
        axes.plot(*zip(*hits, strict=True), "x", color=style.colour, markersize=9, markeredgewidth=2)
        handles.append(Line2D([], [], color=style.colour, linewidth=2, label=f"{name}: {score.share:.0%}"))
    axes.set(xlabel="seconds since the first step", ylabel="steps done")
    draw_legend(figure, handles)
    return figure
