"""Draw how often to save a checkpoint, and how training goes on while ranks are lost, for 13b_runs_that_survive."""

from collections.abc import Mapping

import numpy as np
from matplotlib.ticker import PercentFormatter

from workshop_lib.notebook import figures, palette

from lessons.runs_that_survive import checkpoints
from lessons.runs_that_survive.fault_injection import FaultScore

FAILURES_PER_JOB = 30  # the average in a simulated job


@figures.styled
def checkpoint_interval(save_s: float, mtbf_s: float, restart_s: float, jobs: int) -> figures.RecordFigure:
    """Draw the useful share of the time against the checkpoint interval [s], expected and simulated.

    save_s, restart_s: seconds that a save and a restart take. mtbf_s: mean seconds between failures. jobs: how many
    jobs to simulate per interval.
    """
    best = checkpoints.young(save_s, mtbf_s)
    intervals = np.geomspace(best / 20, best * 20, 200)
    caption = f"a save takes {save_s:g} s, a restart {restart_s:g} s; a failure comes every {mtbf_s:,g} s on average"
    figure, axes = figures.new_figure("How often to save?", caption)
    costs_s = save_s, mtbf_s, restart_s
    work_s = FAILURES_PER_JOB * mtbf_s
    simulated = {"marker": ".", "linestyle": "", "color": palette.GRAY, "label": "simulated jobs"}
    for interval in np.geomspace(best / 16, best * 16, 9):
        runs = [checkpoints.simulated(work_s, interval, *costs_s, seed=job) for job in range(jobs)]
        axes.plot([interval] * jobs, [run["useful computing"] for run in runs], **simulated)
    expected = [checkpoints.useful_share(interval, *costs_s) for interval in intervals]
    axes.plot(intervals, expected, color=palette.BLUE, marker="", linestyle="-", label="expected")
    axes.axvline(best, color=palette.GRAY, linestyle="--", label=f"Young: {float(f'{best:.3g}'):,g} s")
    axes.set(xlabel="seconds of training between two checkpoints", ylabel="useful share of the time")
    axes.set(xscale="log", ylim=(0, 1))
    figures.log_ticks(axes.xaxis)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


@figures.styled
def progress(scores: Mapping[str, FaultScore]) -> figures.RecordFigure:
    """Draw the steps done against seconds for each named score, without faults and with them. Each cross is a fault."""
    caption = "solid: with faults (crosses); dotted: the same training without"
    figure, axes = figures.new_figure("Steps done with and without faults", caption)
    for number, (name, score) in enumerate(scores.items()):
        look = {"color": palette.COLORS[number], "marker": ""}
        for run, dash, label in ((score.free, ":", ""), (score.faulty, "-", f"{name}: {score.share:.0%}")):
            at_s = np.array(run.steps)
            axes.plot(at_s[:, 0] - at_s[0, 0], at_s[:, 1], **look, linestyle=dash, label=label)
        began_s = score.faulty.steps[0][0]
        hits = [(at_s - began_s, fault.step) for at_s, fault in score.faulty.faults]
        axes.plot(*zip(*hits, strict=True), **look | {"marker": "x"}, linestyle="", markeredgewidth=2)
    axes.set(xlabel="seconds since the first step", ylabel="steps done")
    return figure
