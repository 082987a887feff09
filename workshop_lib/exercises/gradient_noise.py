"""The exercises of 07b_gradient_noise: how noisy gradients are."""

from collections.abc import Callable, Iterator

from workshop_lib.exercises import Exercise, Mistake, Property, close, is_number, shown

# (samples per rank, of all ranks): (|G|², tr(Σ)). The norms are exactly what such gradients have on average.
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
            observed = f"with {small_sq:g} and {big_sq:g} for these it is {truth[part]:g}, not {pair[part]:.4g}."
            right = close(pair[part], truth[part], 1e-6)
            yield Property(f"{name} is right for batches of {batches}", right, evidence=pair[part], observed=observed)


def _square(small_sq: float, big_sq: float, small: int, big: int) -> float:
    return (big * big_sq - small * small_sq) / (big - small)


def _trace(small_sq: float, big_sq: float, small: int, big: int) -> float:
    return (small_sq - big_sq) / (1 / small - 1 / big)


def _estimates(hint: str, square: Callable = _square, trace: Callable = _trace) -> Mistake:
    """A wrong `noise_estimates`, from how it gets each of the two."""
    return Mistake(lambda *measured: (square(*measured), trace(*measured)), hint)


_MEASURED = "that is one of the measured norms, and both contain noise: combine the two equations."
_SIGN = "the sign is the wrong way round."
_UNDIVIDED = "divide by the difference of the two batches."
# x is measured with a batch of a, and y with a batch of b.
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
    _estimates("it takes big_sq for |G|², but that has noise too.", trace=lambda x, y, a, b: (x - y) * a),
    _estimates(
        "divide by 1/small_batch - 1/big_batch, don't multiply.", trace=lambda x, y, a, b: (x - y) * (1 / a - 1 / b)
    ),
    _estimates(
        "in the equations tr(Σ) is divided by the batch, so its factors are 1/small_batch and 1/big_batch.",
        trace=lambda x, y, a, b: (x - y) / (b - a),
    ),
    _estimates(
        "that is the noise scale already. Return tr(Σ) itself: both estimates are averaged before you divide.",
        trace=lambda *measured: _trace(*measured) / _square(*measured),
    ),
]
noise_estimates = Exercise(
    "noise_estimates", observe_estimates, estimates_properties, _WRONG_ESTIMATES, communicates=False
)
