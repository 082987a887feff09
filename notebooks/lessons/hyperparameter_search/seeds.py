"""How many seeds it takes to tell two settings apart: 14_hyperparameter_search asks this of recorded runs."""

import math
import statistics
from collections.abc import Sequence

import numpy as np


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
