"""Figures of 14_hyperparameter_search: which rank trained which trial, and the best model so far.

Also how often chance picks the worse of two settings, and learning rates against batch sizes.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from workshop_lib.lessons.gradient_noise.steps_to_target import BestRate
from workshop_lib.lessons.hyperparameter_search import search as settings
from workshop_lib.lessons.hyperparameter_search.trials import DoneJob, Search
from workshop_lib.notebook import figures, palette
from workshop_lib.results.records import RecordError

RUNG_LOOKS = (figures.Look(palette.YELLOW, ""), figures.Look(palette.BLUE, "//"), figures.Look(palette.GREEN, "||"))


def idle_share(state: Search) -> float:
    """Return the share of the ranks' time without a job, from the start of the search to the end of its last job."""
    busy = sum((done.end_s - done.start_s) * len(done.ranks) for done in state.done)
    return 1 - busy / (state.n * max(done.end_s for done in state.done))


@figures.styled
def ranks_over_time(searches: Mapping[str, Search]) -> figures.RecordFigure:
    """Draw which rank trained which trial when: a row per rank, a bar per job with its trial, colored by rung."""
    rungs = sorted({done.result["images"] for state in searches.values() for done in state.done})
    looks = {f"until {images:,} images": RUNG_LOOKS[min(at, len(RUNG_LOOKS) - 1)] for at, images in enumerate(rungs)}
    longest = max(done.end_s for state in searches.values() for done in state.done)

    rows = {f"{name}: idle {idle_share(state):.0%} of the time": state.n for name, state in searches.items()}
    figure, every = figures.stacked(rows, "time (seconds)")
    for axes, state in zip(every, searches.values(), strict=True):
        for done in state.done:
            width = done.end_s - done.start_s
            label = f"until {done.result['images']:,} images"
            for rank in done.ranks:
                figures.draw_bar(axes, rank, done.start_s, 0.97 * width, looks[label], label=label)
                if width > longest / 40:
                    figures.number_bar(
                        axes, rank, done.start_s, width, str(done.result["trial"]), fontsize=figures.SMALL
                    )
        figures.name_rows(axes, [f"rank {rank}" for rank in range(state.n)])
        axes.set_xlim(0, longest)
    return figure


@figures.styled
def best_so_far(records: Iterable[dict]) -> figures.RecordFigure:
    """Draw each method's lowest held-out error so far, against time (left) and images per rank (right).

    There is one line per seed, and a filled point where its search ended. Raises RecordError when no record is of a
    search.
    """
    runs = [run for run in records if run.get("kind") == settings.KIND and "jobs" in run]
    if not runs:
        raise RecordError(
            "no searches to draw: measure some with "
            "`python -m workshop_lib.lessons.hyperparameter_search.measure --out FILE`."
        )
    what = runs[0]["what"]
    seeds = {run["what"]["seed"] for run in runs}
    caption = (
        f"MNIST, {what['ranks']} ranks, a budget of {what['budget']:,} images each; seeds: {len(seeds)}, a line each"
    )
    figure, (left, right) = figures.new_figure("The best model so far", caption, columns=2, sharey=True)
    ways = list(dict.fromkeys(run["what"]["way"] for run in runs))
    for run in runs:
        look = figures.style(ways.index(run["what"]["way"])) | {"label": run["what"]["way"]}
        for axes, x in ((left, "end_s"), (right, "images_per_rank")):
            places, errors = _improvements(run, x)
            axes.plot(places, errors, **look, drawstyle="steps-post", alpha=0.8, markevery=[-1])
    left.set(xlabel="time (seconds)", ylabel="error on held-out images (%)", yscale="log", ylim=(None, 30))
    right.set(xlabel="images that each rank has worked through")
    right.xaxis.set_major_formatter("{x:,.0f}")
    right.locator_params(axis="x", nbins=5)
    figures.log_ticks(left.yaxis, "{x:g}", (1, 2, 3, 5))
    return figure


def _improvements(run: dict, x: str) -> tuple[list[float], list[float]]:
    """Return where each job ended, in seconds or images per rank, and the lowest error in percent up to there."""
    seen = dict[int, int]()
    work = dict.fromkeys(range(run["what"]["ranks"]), 0.0)
    places = []
    errors = []
    best = 100.0
    for job in sorted(run["jobs"], key=lambda job: job["end_s"]):
        new = job["images"] - seen.get(job["trial"], 0)
        seen[job["trial"]] = job["images"]
        for rank in job["ranks"]:
            work[rank] += new / len(job["ranks"])
        best = min(best, 100 * (1 - job["held_out"]))
        places.append(job["end_s"] if x == "end_s" else max(work.values()))
        errors.append(best)
    return places, errors


@figures.styled
def wrong_winner(accuracies: Mapping[str, Sequence[float]], seeds: Sequence[int]) -> figures.RecordFigure:
    """Draw how often a worse setting beats the best one, against the number of seeds averaged: a curve per setting.

    accuracies: for each setting, one accuracy per measured seed.
    """
    names = sorted(accuracies, key=lambda name: -np.mean(accuracies[name]))
    measured = len(accuracies[names[0]])
    caption = f"drawn again and again from {measured} measured seeds each"
    figure, axes = figures.new_figure("How often the worse setting wins", caption)
    for worse in names[1:]:
        shares = [100 * settings.wrong_winner(accuracies[names[0]], accuracies[worse], n) for n in seeds]
        points = 100 * (np.mean(accuracies[names[0]]) - np.mean(accuracies[worse]))
        axes.plot(seeds, shares, label=f"{worse}: {points:.2f} points behind {names[0]}")
    axes.axhline(5, **figures.LEVEL, label="5 %")
    axes.set(xlabel="seeds per setting", ylabel="wrong winner (%)", ylim=(0, None), xscale="log")
    figures.ticks_at(axes.xaxis, seeds)
    return figure


@figures.styled
def rates(done: Iterable[DoneJob], best: Mapping[int, BestRate]) -> figures.RecordFigure:
    """Draw learning rates against batch sizes: a search's trials (left), and the best rates of recorded runs (right).

    On the left, better trials are larger and darker. On the right is the rate that reaches a target in the fewest steps
    at each batch size, with the linear and the square-root rule drawn through that of the smallest batch.
    """
    # The result of each trial's last job, whichever search the trial belongs to.
    last = {(each.result["trial"], str(each.result["setting"])): each.result for each in done}
    seeds = len(next(iter(best.values())).steps)
    where = f"left: your trials, large dark points do well; right: recorded runs, plain SGD, {seeds} seeds"
    figure, (left, right) = figures.new_figure("Learning rate against batch", where, columns=2)
    errors = np.array([max(1e-3, 1 - result["held_out"]) for result in last.values()])
    settings_ = [result["setting"] for result in last.values()]
    # With momentum m, steps end up 1 / (1 - m) times as long, so lr / (1 - m) is the rate to compare.
    x = [setting["batch"] for setting in settings_]
    y = [setting["lr"] / (1 - setting["momentum"]) for setting in settings_]
    look = {"cmap": "viridis", "norm": "log", "edgecolors": palette.INK, "linewidths": 0.5}
    drawn = left.scatter(x, y, c=100 * errors, s=30 + 60 * np.clip(np.log10(1 / errors), 0, 2), **look)
    bar = figure.colorbar(drawn, ax=left, label="error on held-out images (%)")
    figures.log_ticks(bar.ax.yaxis, "{x:g}", (1, 2, 5))
    batches = np.array(sorted(best))
    tuned = np.array([best[batch].lr for batch in batches])
    right.plot(batches, tuned, linestyle="", markersize=10, label="best of the rates tried")
    growth = batches / batches[0]
    for name, factors, dash in (("linear rule", growth, "-"), ("square-root rule", np.sqrt(growth), "--")):
        rule = figures.LEVEL | {"linewidth": 2, "linestyle": dash}
        right.plot(batches, tuned[0] * factors, **rule, label=name)
    right.set_ylim(tuned.min() / 2, tuned.max() * 4)
    for axes, label in ((left, "learning rate / (1 - momentum)"), (right, "best learning rate")):
        axes.set(xscale="log", yscale="log", xlabel="batch (samples)", ylabel=label)
        figures.log_ticks(axes.yaxis, "{x:g}")
    figures.ticks_at(left.xaxis, sorted(set(x)), [f"{batch:g}" for batch in sorted(set(x))])
    figures.ticks_at(right.xaxis, batches)
    return figure
