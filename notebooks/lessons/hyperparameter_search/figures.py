"""Figures of 14_hyperparameter_search: which rank trained which trial, and the best model so far.

Also how often chance picks the worse of two settings.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from workshop_lib.notebook import figures, palette

from lessons.hyperparameter_search import seeds
from lessons.hyperparameter_search.search import Search

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
    """Draw each method's lowest held-out error so far, against the images of all its trials.

    There is one line per seed, and a filled point where its search ended.
    """
    runs = [run for run in records if run.get("kind") == "search" and "jobs" in run]
    what = runs[0]["what"]
    repeats = {run["what"]["seed"] for run in runs}
    caption = f"MNIST, {what['ranks']} ranks, {what['budget']:,} images in all; seeds: {len(repeats)}, a line each"
    figure, axes = figures.new_figure("The best model so far", caption)
    ways = list(dict.fromkeys(run["what"]["way"] for run in runs))
    for run in runs:
        look = figures.style(ways.index(run["what"]["way"])) | {"label": run["what"]["way"]}
        images, errors = _improvements(run)
        axes.plot(images, errors, **look, drawstyle="steps-post", alpha=0.8, markevery=[-1])
    axes.set(
        xlabel="images of all trials together", ylabel="error on held-out images (%)", yscale="log", ylim=(None, 30)
    )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    figures.log_ticks(axes.yaxis, "{x:g}", (1, 2, 3, 5))
    return figure


def _improvements(run: dict) -> tuple[list[int], list[float]]:
    """Return the images of all trials up to the end of each job, and the lowest error in percent up to there."""
    seen = dict[int, int]()
    images = []
    errors = []
    best = 100.0
    for job in sorted(run["jobs"], key=lambda job: job["end_s"]):
        seen[job["trial"]] = job["images"]
        best = min(best, 100 * (1 - job["held_out"]))
        images.append(sum(seen.values()))
        errors.append(best)
    return images, errors


@figures.styled
def wrong_winner(accuracies: Mapping[str, Sequence[float]], numbers: Sequence[int]) -> figures.RecordFigure:
    """Draw how often a worse setting beats the best one, against the number of seeds averaged: a curve per setting.

    accuracies: for each setting, one accuracy per measured seed.
    """
    names = sorted(accuracies, key=lambda name: -np.mean(accuracies[name]))
    measured = len(accuracies[names[0]])
    caption = f"drawn again and again from {measured} measured seeds each"
    figure, axes = figures.new_figure("How often the worse setting wins", caption)
    for worse in names[1:]:
        shares = [100 * seeds.wrong_winner(accuracies[names[0]], accuracies[worse], n) for n in numbers]
        points = 100 * (np.mean(accuracies[names[0]]) - np.mean(accuracies[worse]))
        axes.plot(numbers, shares, label=f"{worse}: {points:.2f} points behind {names[0]}")
    axes.axhline(5, **figures.LEVEL, label="5 %")
    axes.set(xlabel="seeds per setting", ylabel="wrong winner (%)", ylim=(0, None), xscale="log")
    figures.ticks_at(axes.xaxis, numbers)
    return figure
