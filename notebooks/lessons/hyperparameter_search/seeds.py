"""Whether seeds alone explain a difference, and how many seeds it takes to tell two settings apart."""

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from workshop_lib.notebook.results import records
from workshop_lib.paths import ROOT


def recorded() -> dict[str, list[float]]:
    """Return the held-out accuracies of each recorded setting, one per seed. The highest mean comes first."""
    repeated = {}
    for run in records.read(ROOT / "assets" / "results" / "search.jsonl"):
        name = "lr {lr:g}, momentum {momentum:g}, batch {batch}".format(**run["what"]["setting"])
        repeated[name] = run["held_out"]
    in_order = sorted(repeated, key=lambda name: statistics.fmean(repeated[name]), reverse=True)
    return {name: repeated[name] for name in in_order}


def spread() -> float:
    """Return the median over the recorded settings of the standard deviation over seeds."""
    return statistics.median(statistics.stdev(accuracies) for accuracies in recorded().values())


def least_difference() -> float:
    """Return the smallest difference between two runs that counts: twice its standard deviation, sqrt(2) spreads."""
    return 2 * math.sqrt(2) * spread()


def verdict(accuracies: Mapping[str, float]) -> str:
    """Say which of two accuracies, from one run each, is higher, and whether seeds alone could explain that."""
    (first, high), (second, low) = sorted(accuracies.items(), key=lambda item: item[1], reverse=True)
    difference = high - low
    counts = difference > least_difference()
    return (
        f"{first} {high:.2%}, {second} {low:.2%}.\n"
        f"The difference of {100 * difference:.2f} points is {difference / spread():.1f} times the spread over seeds, "
        f"{100 * spread():.2f} points. {'That counts.' if counts else 'Another seed could reverse it.'}"
    )


def wrong_winner(better: Sequence[float], worse: Sequence[float], seeds: int, draws: int = 4000) -> float:
    """Estimate how often the worse setting has the higher mean when `seeds` seeds are averaged, as a share of 1.

    Draws `seeds` of the measured accuracies of each setting with replacement, `draws` times. A tie counts as half.
    """
    random = np.random.default_rng(1)
    means = [random.choice(np.asarray(each), size=(draws, seeds)).mean(axis=1) for each in (better, worse)]
    return float(np.mean(means[1] > means[0]) + np.mean(means[1] == means[0]) / 2)


def seeds_needed(first: Sequence[float], second: Sequence[float], sigmas: float = 2.0) -> int:
    """Return how many seeds per setting make the difference of the means `sigmas` times its standard error.

    The standard error of a mean of n values is s / sqrt(n), and that of the difference of two such means is sqrt(2)
    times as large, so n = 2 (sigmas s / difference)².
    """
    variance = (statistics.variance(first) + statistics.variance(second)) / 2
    difference = statistics.fmean(first) - statistics.fmean(second)
    return max(1, math.ceil(2 * sigmas**2 * variance / difference**2))
