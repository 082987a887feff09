"""Fits how many steps training needs at each batch size, and where that curve bends: at the critical batch.

07b_gradient_noise fits its own runs and a recorded long one. The law is (S / S_min - 1) (E / E_min - 1) = 1 for S steps
on E = S B samples (McCandlish et al. 2018, arXiv:1812.06162, section 2.3). Solved for S, it is S = S_min + E_min / B, a
straight line in 1 / B.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workshop_lib.errors import InputError

RESAMPLES = 1000
CONFIDENCE = (2.5, 97.5)  # percentiles at the ends of each interval
POINTS = 3  # fewest batch sizes: one for each of two parameters, and one more to show how well they fit


@dataclass(frozen=True)
class CriticalBatchFit:
    """Steps and samples to a target, as functions of the batch size.

    s_min: the number of steps that even the largest batch needs. e_min: the number of samples that even the smallest
    batch needs. b_crit = e_min / s_min, in samples: at this batch, both are twice their minimum. intervals: the ends of
    each constant's 95 % interval, by bootstrap. With few points an interval is too narrow, and contains the truth in
    about 85 % of cases. An end of b_crit at 0 or inf means that the points do not bound it on that side.
    """

    s_min: float
    e_min: float
    b_crit: float
    intervals: dict[str, tuple[float, float]]

    def steps(self, batch):
        """Steps to the target with batches of `batch` samples (number or array)."""
        return self.s_min * (1 + self.b_crit / np.asarray(batch, dtype=float))

    def samples(self, batch):
        """Samples to the target with batches of `batch` samples (number or array).

        Plotted against `steps`, they are the Pareto frontier of compute against time: less of one costs more of the
        other.
        """
        return self.e_min * (1 + np.asarray(batch, dtype=float) / self.b_crit)


def fit(batches, steps, seed: int = 0) -> CriticalBatchFit:
    """Fit measured pairs (batch in samples, steps to the target); each repeat is a pair of its own.

    The fit minimizes squared relative errors, because steps span orders of magnitude. The intervals come from refits
    to the fitted steps with resampled residuals; with few pairs they are somewhat too narrow. Raises InputError for
    fewer than three batch sizes, and when the steps do not follow the law, so that s_min or e_min would not be above 0.
    """
    batches = np.asarray(batches, dtype=float)
    steps = np.asarray(steps, dtype=float)
    sizes = np.unique(batches)
    if len(sizes) < POINTS:
        raise InputError(
            f"{len(sizes)} batch sizes ({_listed(sizes)}): the fit has two parameters and needs at least "
            f"{POINTS}; measure more"
        )
    s_min, e_min = least_squares(batches, steps)
    if not (s_min > 0 and e_min > 0):
        raise InputError(
            f"steps {_listed(steps)} at batches {_listed(batches)}: no critical batch fits. Measure larger and smaller "
            "batches, with the learning rate tuned for each."
        )
    fitted = s_min + e_min / batches
    residuals = steps / fitted - 1
    residuals = (residuals - residuals.mean()) * np.sqrt(len(steps) / (len(steps) - 2))
    chosen = np.random.default_rng(seed).choice(residuals, size=(RESAMPLES, len(steps)))
    refits = np.maximum(least_squares(batches, fitted * np.maximum(1 + chosen, 0.01)), 0)
    with np.errstate(divide="ignore"):
        drawn = {"s_min": refits[0], "e_min": refits[1], "b_crit": refits[1] / refits[0]}
    ends = {name: np.percentile(values, CONFIDENCE, method="nearest").tolist() for name, values in drawn.items()}
    intervals = {name: (low, high) for name, (low, high) in ends.items()}
    return CriticalBatchFit(float(s_min), float(e_min), float(e_min / s_min), intervals)


def fit_each(pairs: Mapping[str, tuple[Sequence, Sequence]], own: Callable) -> dict[str, CriticalBatchFit]:
    """Fit each of the named pairs (batches, steps), and print the critical batch with its interval.

    own: a function of batches and steps that returns (s_min, e_min). Its critical batch is printed beside that of
    `fit` and its interval. Names without a fit are left out, and so are names without pairs.
    """
    fits = {}
    for name, (batches, steps) in pairs.items():
        if not batches:
            print(f"{name}: no batch size has reached the target.")
            continue
        try:
            fits[name] = fit(batches, steps)
        except InputError as error:
            print(f"{name}: no fit. {error}")
            continue
        s_min, e_min = own(np.array(batches, dtype=float), np.array(steps, dtype=float))
        low, high = fits[name].intervals["b_crit"]
        print(
            f"{name}: your fit gives a critical batch of {e_min / s_min:.0f}, and the library's gives "
            f"{fits[name].b_crit:.0f} (95 % interval: {low:.0f} to {high:.0f})"
        )
    return fits


def least_squares(batches: np.ndarray, steps: np.ndarray, rounds: int = 8) -> np.ndarray:
    """Fit s_min and e_min, each [...], to steps [..., n] at batches [n]; return them stacked, [2, ...].

    Errors are relative to the steps that the previous round fitted, and in the first round to the measured steps.
    """
    rows = np.stack([np.ones_like(batches), 1 / batches])  # [2, n]: what s_min and e_min are multiplied by
    fitted = steps
    for _ in range(rounds):
        weighted = rows / fitted[..., None, :] ** 2
        constants = np.linalg.solve(weighted @ rows.T, weighted @ steps[..., None])[..., 0]
        # The line may cross zero between the points. So the weights use at least a tenth of the measured steps.
        fitted = np.maximum(constants @ rows, steps / 10)
    return np.moveaxis(constants, -1, 0)


def _listed(values: np.ndarray) -> str:
    return ", ".join(f"{value:g}" for value in values)
