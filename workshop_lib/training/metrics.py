"""Loss and accuracy over all samples of all ranks: sums are added, never means averaged."""

import numpy as np

from workshop_lib.training.backends.base import Backend


def over_ranks(what: str, sums: np.ndarray, total: int | None, backend: Backend) -> tuple[float, float, int]:
    """Mean loss, accuracy and number of samples, from each rank's sums: float64 [3], the loss, the correct
    answers and the samples. All ranks call it and get the same.

    Raises RuntimeError when the ranks together saw other than `total` samples, if it is given.
    """
    loss, correct, samples = backend.sum(sums).tolist()
    if total is not None and samples != total:
        raise RuntimeError(
            f"the ranks together saw {int(samples)} {what} samples instead of {total}: the shards "
            "overlap or leave samples out"
        )
    return loss / samples, correct / samples, int(samples)
