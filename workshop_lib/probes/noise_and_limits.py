"""Rank side of the exercises in 07b_noise_and_limits: plain functions, run there so that an endless loop
ends.

NORMS are the squared norms that a gradient with |G|^2 and tr(Sigma) has on average, by batches of one rank
and of all. GRADIENTS are gradient, residual and k.
"""

import numpy as np

TRUTHS = {(5, 20): (3.0, 40.0), (8, 24): (0.5, 96.0)}  # (batch of a rank, of all): (|G|^2, tr(Sigma))
NORMS = {
    batches: tuple(gradient_sq + trace / batch for batch in batches) for batches, (gradient_sq, trace) in TRUTHS.items()
}
GRADIENTS = {
    "first": (np.array([0.5, -4.0, 1.0, 2.0, -0.25, 3.0]), np.zeros(6), 2),
    # The residual decides: together the largest are at 0, 2 and 3, of the gradient alone at 1, 3 and 5.
    "later": (np.array([1.0, -4.0, 0.5, 6.0, 0.0, 3.0]), np.array([6.0, 3.5, -7.0, 1.0, 0.25, -1.5]), 3),
}


def noise_estimates(comm, function) -> dict:
    """What `function` returns for each of NORMS."""
    return {batches: function(*norms, *batches) for batches, norms in NORMS.items()}


def compress(comm, function) -> dict:
    """What `function` returns for each of GRADIENTS, and whether it left its arguments alone."""
    found = {}
    for name, (gradient, residual, k) in GRADIENTS.items():
        given = gradient.copy(), residual.copy()
        returned = function(*given, k)
        if isinstance(returned, tuple | list):
            returned = [None if part is None else np.array(part) for part in returned]
        kept = np.array_equal(given[0], gradient) and np.array_equal(given[1], residual)
        found[name] = {"returned": returned, "arguments kept": kept}
    return found
