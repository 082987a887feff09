"""Judges the exercises of 07b_gradient_noise: estimates of gradient noise, and the law of steps against batch size."""

from collections.abc import Callable, Iterator

import numpy as np

from workshop_lib.judge import Exercise, Mistake, Property, close, is_number, shown

# {(samples per rank, samples of all ranks): (|G|², tr(Σ))}. The learner gets the exact mean norms of such gradients.
TRUTHS = {(5, 20): (3.0, 40.0), (8, 24): (0.5, 96.0)}


def _norms(batches: tuple[int, int]) -> list[float]:
    gradient_sq, trace = TRUTHS[batches]
    return [gradient_sq + trace / batch for batch in batches]


def observe_estimates(comm, function: Callable) -> list:
    """What `function` returns for each of TRUTHS."""
    return [function(*_norms(batches), *batches) for batches in TRUTHS]


def estimates_properties(observations: list) -> Iterator[Property]:
    estimates = observations[0]
    pairs = all(isinstance(pair, tuple | list) and len(pair) == 2 and all(map(is_number, pair)) for pair in estimates)
    hint = f"it returned {shown(estimates[0])}: `return` both estimates, as `gradient_sq, trace`."
    yield Property("it returns a pair of numbers", pairs, hint)
    for part, name in enumerate(("|G|²", "tr(Σ)")):
        for (batches, truth), pair in zip(TRUTHS.items(), estimates, strict=True):
            small_sq, big_sq = _norms(batches)
            observed = f"for norms of {small_sq:g} and {big_sq:g} it is {truth[part]:g}, not {pair[part]:.4g}."
            right = close(pair[part], truth[part], 1e-6)
            yield Property(f"{name} is right for batches of {batches}", right, evidence=pair[part], observed=observed)


def _square(small_sq: float, big_sq: float, small: int, big: int) -> float:
    return (big * big_sq - small * small_sq) / (big - small)


def _trace(small_sq: float, big_sq: float, small: int, big: int) -> float:
    return (small_sq - big_sq) / (1 / small - 1 / big)


def _estimates(hint: str, square: Callable = _square, trace: Callable = _trace) -> Mistake:
    """A wrong `noise_estimates`: `square` computes its |G|², and `trace` its tr(Σ)."""
    return Mistake(lambda *measured: (square(*measured), trace(*measured)), hint)


_MEASURED = "that is one of the measured norms, and both contain noise: combine the two equations."
_SIGN = "the sign is the wrong way round."
_UNDIVIDED = "divide by the difference of the two batches."
# x is the squared norm with a batch of a samples, and y the one with a batch of b samples.
_WRONG_ESTIMATES = [
    _estimates("the two are the other way round: |G|² comes first.", _trace, _square),
    _estimates(_MEASURED, square=lambda x, y, a, b: y),
    _estimates(_MEASURED, trace=lambda x, y, a, b: x),
    _estimates(_SIGN, square=lambda *measured: -_square(*measured)),
    _estimates(_SIGN, trace=lambda *measured: -_trace(*measured)),
    _estimates(_UNDIVIDED, square=lambda x, y, a, b: b * y - a * x),
    _estimates(_UNDIVIDED, trace=lambda x, y, a, b: (x - y) * a * b),
    _estimates("multiply each norm by its own batch.", square=lambda x, y, a, b: (b * x - a * y) / (b - a)),
    _estimates("divide the difference by 1/small_batch - 1/big_batch.", trace=lambda x, y, a, b: x - y),
    _estimates("it uses big_sq as |G|², but big_sq contains noise, too.", trace=lambda x, y, a, b: (x - y) * a),
    _estimates(
        "divide by 1/small_batch - 1/big_batch, don't multiply.", trace=lambda x, y, a, b: (x - y) * (1 / a - 1 / b)
    ),
    _estimates(
        "in the equations tr(Σ) is divided by the batch, so its factors are 1/small_batch and 1/big_batch.",
        trace=lambda x, y, a, b: (x - y) / (b - a),
    ),
    _estimates(
        "that is already the noise scale. Return tr(Σ) itself: both estimates are averaged before you divide.",
        trace=lambda *measured: _trace(*measured) / _square(*measured),
    ),
]
noise_estimates = Exercise(
    "noise_estimates", observe_estimates, estimates_properties, _WRONG_ESTIMATES, communicates=False
)

# {(fewest steps, fewest samples): batch sizes}. At these sizes, the learner gets exactly the steps of the law.
LAWS = {(100.0, 9_000.0): (16, 32, 64, 128, 256, 512), (40.0, 20_000.0): (1_024, 8, 64)}


def _steps(law: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    batches = np.array(LAWS[law], dtype=float)
    return batches, law[0] + law[1] / batches


def observe_fit(comm, function: Callable) -> list:
    """What `function` returns for each of LAWS."""
    return [function(*_steps(law)) for law in LAWS]


def fit_properties(observations: list) -> Iterator[Property]:
    fits = observations[0]
    pairs = all(
        isinstance(fit, tuple | list | np.ndarray) and len(fit) == 2 and all(map(is_number, fit)) for fit in fits
    )
    yield Property("it returns a pair of numbers", pairs, f"it returned {shown(fits[0])}: `return s_min, e_min`.")
    for part, name in enumerate(("the fewest steps", "the fewest samples")):
        for law, fit in zip(LAWS, fits, strict=True):
            observed = f"for the law with S_min = {law[0]:g} and E_min = {law[1]:g}, it returned {fit[part]:.6g}."
            right = close(fit[part], law[part], 1e-3)  # wide enough for an iterative fit
            text = f"{name} are right for batches of {', '.join(map(str, LAWS[law]))}"
            yield Property(text, right, evidence=[float(value) for value in fit], observed=observed)


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Intercept and slope of the straight line that fits the points best."""
    slope, intercept = np.polyfit(x, y, 1)
    return float(intercept), float(slope)


_WRONG_FITS = [
    Mistake(lambda b, s: _line(1 / b, s)[::-1], "the two are the other way round: return S_min, then E_min."),
    Mistake(lambda b, s: _line(b, s), "steps are not a straight line in B. In 1 / B they are: fit against that."),
    Mistake(
        lambda b, s: _line(np.log(b), s), "steps are not a straight line in log B. In 1 / B they are: fit against that."
    ),
    Mistake(
        lambda b, s: (min(s), _line(1 / b, s)[1]),
        "even the largest batch took more than S_min: read it off where the line meets 1 / B = 0.",
    ),
    Mistake(
        lambda b, s: (_line(1 / b, s)[0], min(b * s)),
        "even the smallest batch took more samples than E_min: it is the slope of the line.",
    ),
    Mistake(
        lambda b, s: (min(s), min(b * s)), "those are the smallest measured values, but both limits lie below them."
    ),
    Mistake(
        lambda b, s: (_line(1 / b, s)[0], _line(1 / b, s)[1] / _line(1 / b, s)[0]),
        "the second value is already the critical batch: return E_min itself.",
    ),
    Mistake(
        lambda b, s: (_line(1 / b, s)[0], 1 / _line(1 / b, s)[1]), "E_min is the slope of the line, not one over it."
    ),
]
fit_law = Exercise("fit_law", observe_fit, fit_properties, _WRONG_FITS, communicates=False)
