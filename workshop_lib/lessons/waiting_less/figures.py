"""Draws who computes and who waits, for 07e_waiting_less."""

from collections.abc import Iterable

from workshop_lib.notebook import figures, palette

SHOWN_MS = 120  # about eight steps
FROM_MS = 50  # the first steps are slower


@figures.styled
def timelines(runs: Iterable[dict], caption: str) -> figures.RecordFigure:
    """Draw when each worker computed its gradients, in a panel per run of `Workers.train`. The gaps are waiting."""
    chosen = list(runs)
    height = 1.9 + 1.15 * len(chosen)
    figure, rows = figures.new_figure(
        "Who computes, and who waits?", caption, len(chosen), size_inches=(12, height), sharex=True, squeeze=False
    )
    for axes, run in zip(rows[:, 0], chosen, strict=True):
        for worker, times in enumerate(run["computing"]):
            for number, (begin_s, end_s) in enumerate(times):
                bar = (1000 * begin_s - FROM_MS, 1000 * (end_s - begin_s))
                color = palette.BLUE if number % 2 else palette.GREEN
                axes.broken_barh([bar], (worker - 0.35, 0.7), color=color, edgecolor=palette.PAPER)
        names = [f"worker {worker + 1}" for worker in range(len(run["computing"]))]
        figures.ticks_at(axes.yaxis, range(len(names)), names)
        axes.set_title(f"{run['mode']}, {run['straggler']} straggler")
        axes.grid(visible=False)
        axes.invert_yaxis()
    axes.set(xlim=(0, SHOWN_MS), xlabel="milliseconds")
    return figure
