"""When two results are equal: the same for probes, which stop at the first wrong one, and for checks."""

import numpy as np


def close(got, right, rounding: float = 1e-9) -> bool:
    """Whether `got` has `right`'s shape, and differs by at most `rounding` of its largest element."""
    try:
        if np.shape(got) != np.shape(right):
            return False
        apart = np.abs(np.asarray(got, dtype=float) - right)
    except (TypeError, ValueError):  # not numbers at all
        return False
    return bool(np.max(apart, initial=0) <= rounding * np.max(np.abs(right), initial=0))
