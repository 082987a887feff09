"""Judges the exercises of 07b_gradient_noise: estimates of gradient noise, and the law of steps against batch size."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played

NOTEBOOK = "07b_gradient_noise"
written = partial(own_or_solution, notebook=NOTEBOOK)
# {(samples per rank, samples of all ranks): (|G|², tr(Σ))}. The learner gets the exact mean norms of such gradients.
TRUTHS = {(5, 20): (3.0, 40.0), (8, 24): (0.5, 96.0)}


def play_estimates(noise_estimates: Callable, comm) -> Iterator[tuple]:
    estimates = {}
    for batches, (gradient_sq, trace) in TRUTHS.items():
        norms = [gradient_sq + trace / batch for batch in batches]
        estimates[batches] = norms, noise_estimates(*norms, *batches)
    for part, name in enumerate(("|G|²", "tr(Σ)")):
        for batches, ((small_sq, big_sq), estimate) in estimates.items():
            given = f"for norms of {small_sq:g} and {big_sq:g}"
            yield f"{name} is right for batches of {batches}", estimate[part], given


SQUARE = "(big_batch * big_sq - small_batch * small_sq) / (big_batch - small_batch)"
TRACE = "(small_sq - big_sq) / (1 / small_batch - 1 / big_batch)"
noise_estimates = played(
    "noise_estimates",
    NOTEBOOK,
    play_estimates,
    [
        Edit(
            "the two are the other way round: |G|² comes first.",
            ("return gradient_sq, trace", "return trace, gradient_sq"),
        ),
        Edit(
            "that is one of the measured norms, and both contain noise: combine the two equations.", (SQUARE, "big_sq")
        ),
        Edit("divide the difference by 1/small_batch - 1/big_batch.", (TRACE, "small_sq - big_sq")),
        Edit(
            "that is already the noise scale. Return tr(Σ) itself: both estimates are averaged before you divide.",
            (TRACE, f"{TRACE} / gradient_sq"),
        ),
    ],
    returns="both estimates, as `gradient_sq, trace`",
    communicates=False,
)

# {(fewest steps, fewest samples): batch sizes}. At these sizes, the learner gets exactly the steps of the law.
LAWS = {(100.0, 9_000.0): (16, 32, 64, 128, 256, 512), (40.0, 20_000.0): (1_024, 8, 64)}


def play_fit(fit_law: Callable, comm) -> Iterator[tuple]:
    for (s_min, e_min), sizes in LAWS.items():
        batches = np.array(sizes, dtype=float)
        fewest_steps, fewest_samples = fit_law(batches, s_min + e_min / batches)
        text = f"the fewest steps and the fewest samples are right for batches of {', '.join(map(str, sizes))}"
        law = f"for the law with S_min = {s_min:g} and E_min = {e_min:g}"
        yield text, fewest_steps, law
        yield text, fewest_samples, law


FIT = "np.polyfit(1 / batches, steps, 1, w=1 / steps)"
RETURN = "return s_min, e_min"
fit_law = played(
    "fit_law",
    NOTEBOOK,
    play_fit,
    [
        Edit("the two are the other way round: return S_min, then E_min.", (RETURN, "return e_min, s_min")),
        Edit(
            "steps are not a straight line in B. In 1 / B they are: fit against that.",
            (FIT, "np.polyfit(batches, steps, 1)"),
        ),
        Edit(
            "even the largest batch took more than S_min: read it off where the line meets 1 / B = 0.",
            (RETURN, "return min(steps), e_min"),
        ),
        Edit("the second value is already the critical batch: return E_min itself.", (RETURN, f"{RETURN} / s_min")),
    ],
    returns="s_min, e_min",
    rounding=1e-3,  # wide enough for an iterative fit
    communicates=False,
)
