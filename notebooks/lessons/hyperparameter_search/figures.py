"""Figures of 14_hyperparameter_search: which rank trained which trial, and the best model so far.

Also how often chance picks the worse of two settings.
"""

from collections.abc import Mapping, Sequence

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
def best_so_far(searches: Mapping[str, Search]) -> figures.RecordFigure:
    """Draw each search's lowest held-out error so far, against the images of all its trials."""
    figure, axes = figures.new_figure("The best model so far", "of all trials together, or of the one large job")
    for at, (name, state) in enumerate(searches.items()):
        images = np.cumsum([done.result["new_images"] for done in state.done])
        errors = np.minimum.accumulate([100 * (1 - done.result["held_out"]) for done in state.done])
        axes.plot(images, errors, **figures.style(at), label=name, drawstyle="steps-post", markevery=[-1])
    axes.set(xlabel="images of all trials together", ylabel="error on held-out images (%)", yscale="log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    figures.log_ticks(axes.yaxis, "{x:g}", (1, 2, 3, 5, 7))
    return figure


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
