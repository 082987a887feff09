"""Estimates the simple noise scale from norms of gradients that data-parallel training computes anyway.

07b_gradient_noise follows it over a training run. B_simple = tr(Sigma) / |G|^2, where G is the mean of the samples'
gradients and Sigma their covariance (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training",
arXiv:1812.06162, section 2.2). For a batch of B samples, E|G_B|^2 = |G|^2 + tr(Sigma) / B, so two batch sizes give two
equations for the two unknowns.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class Norms(NamedTuple):
    """Squared gradient norms of one step: the mean of the ranks' own norms, and the norm of the averaged gradient."""

    small_sq: float
    big_sq: float


def averaged(gradient: np.ndarray, comm) -> tuple[np.ndarray, Norms]:
    """Average `gradient` [n] over the ranks; return the mean as a new array, and the Norms.

    All ranks call it, and it blocks. It makes one Allreduce of n + 1 numbers, the last of which is the rank's own
    squared norm. Every rank's gradient must come from the same number of samples.
    """
    message = np.append(gradient, gradient @ gradient)
    total = np.empty_like(message)
    comm.Allreduce(message, total)
    total /= comm.size
    mean = total[:-1]
    return mean, Norms(float(total[-1]), float(mean @ mean))


def beside_the_mean(
    single: np.ndarray, batches: Sequence[int], draws: int = 20, seed: int = 1
) -> tuple[float, dict[int, list[tuple[float, float]]]]:
    """Draw random batches from the gradients of single samples [samples, n], and compare them with the mean of all.

    Returns the length of that mean G and, for each batch size, the component along G and the length of the gradients of
    `draws` batches. Samples are drawn with replacement.
    """
    random = np.random.default_rng(seed)
    mean = single.mean(axis=0)
    length = float(np.linalg.norm(mean))
    by_batch = {}
    for batch in batches:
        drawn = [single[random.integers(len(single), size=batch)].mean(axis=0) for _ in range(draws)]
        by_batch[batch] = [(float(gradient @ mean) / length, float(np.linalg.norm(gradient))) for gradient in drawn]
    return length, by_batch


class Follower:
    """Follows the noise scale over the steps of a training run, as a ratio of exponential averages.

    estimator: a function like `noise_estimates` of 07b. memory_steps: roughly how many steps it averages over; math.inf
    averages over all steps equally.
    """

    def __init__(self, small_batch: int, big_batch: int, estimator: Callable, memory_steps: float = math.inf):
        self.batches = (small_batch, big_batch)
        self.estimator = estimator
        self.kept = 1 - 1 / memory_steps
        self.weight = 0.0
        self.sums = np.zeros(2)  # weighted sums of |G|^2 and tr(Sigma)
        self.squares = np.zeros((2, 2))  # sums of their products, with squared weights

    def add(self, norms: Norms) -> None:
        """Add the norms of one step."""
        new = np.array(self.estimator(*norms, *self.batches))
        self.weight = self.kept * self.weight + 1
        self.sums = self.kept * self.sums + new
        self.squares = self.kept**2 * self.squares + np.outer(new, new)

    @property
    def gradient_sq(self) -> float:
        """The average of |G|^2."""
        return float(self.sums[0] / self.weight)

    @property
    def trace(self) -> float:
        """The average of tr(Sigma)."""
        return float(self.sums[1] / self.weight)

    @property
    def noise_scale(self) -> float:
        """tr(Sigma) / |G|^2 in samples; NaN while the average of |G|^2 is not above 0."""
        return float(self.sums[1] / self.sums[0]) if self.sums[0] > 0 else math.nan

    @property
    def standard_error(self) -> float:
        """The noise scale's standard error: infinitesimal jackknife of a ratio of weighted sums (Efron 1982, ch. 6).

        It holds to first order, and for steps whose noise is independent. With a relative error above about 0.3, the
        true spread is wider, and extends further toward large values. NaN where the noise scale is NaN.
        """
        slope = np.array([-self.noise_scale, 1.0])  # a step contributes tr(Sigma) - B_simple |G|^2
        return float(np.sqrt(slope @ self.squares @ slope) / self.sums[0]) if self.sums[0] > 0 else math.nan
