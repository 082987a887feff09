"""Draws who computes and who waits, for 07e_waiting_less."""

from collections.abc import Sequence

from workshop_lib.notebook import figures, palette

from lessons.waiting_less.workers import is_late

FIRST = 20  # the gradient at the left edge, because the first ones are slower
SHOWN_STEPS = 8


@figures.styled
def timelines(runs: Sequence[dict]) -> figures.RecordFigure:
    """Draw when each worker computed its gradients, in a panel per run of `Workers.train`. The gaps are waiting.

    All panels have the same scale, on which the first run takes eight steps or so.
    """
    caption = "blue: computes a gradient; yellow: computes a gradient and is late; gaps: waits"
    title = "Who computes, and who waits?"
    size = (12, 1.9 + 1.15 * len(runs))
    figure, rows = figures.new_figure(title, caption, len(runs), size_inches=size, sharex=True, squeeze=False)
    for axes, run in zip(rows[:, 0], runs, strict=True):
        workers = len(run["computing"])
        first = run["computing"][0]
        start_s, _ = first[min(FIRST, len(first) - 1)]
        for worker, times in enumerate(run["computing"], 1):
            for step, (begin_s, end_s) in enumerate(times):
                bar = (1000 * (begin_s - start_s), 1000 * (end_s - begin_s))
                late = is_late(worker, step, workers, run["straggler"])
                color = palette.YELLOW if late else palette.BLUE
                axes.broken_barh([bar], (worker - 0.35, 0.7), color=color, edgecolor=palette.PAPER)
        figures.ticks_at(axes.yaxis, range(1, workers + 1), [f"worker {worker}" for worker in range(1, workers + 1)])
        axes.set_title(f"{run['mode']}; late: {run['straggler']}")
        axes.grid(visible=False)
        axes.invert_yaxis()
    axes.set(xlim=(0, SHOWN_STEPS * runs[0]["ms per step"]), xlabel="milliseconds")
    return figure
