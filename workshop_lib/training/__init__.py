"""Training on every rank: one loop, and one short file per backend."""

import math
from collections.abc import Mapping

KINDS = ("parameters", "gradients", "optimizer")  # kinds of memory: the model's states
SCHEMA = 1  # version of the run records' format, which their writers and readers agree on
# The loss of guessing ten classes with equal probabilities, and the multiple of that loss that counts as huge.
GUESS_LOSS = math.log(10)
HUGE = 10


def diverged(row: Mapping) -> bool:
    """Return whether training diverged in this epoch, a record.EpochRow.

    It diverged if a loss is not finite, or if the training loss was huge and the test loss is still above the loss of
    random guessing.
    """
    losses = [row[name] for name in ("train_loss", "test_loss") if name in row]
    return None in losses or (losses[0] > HUGE * GUESS_LOSS and losses[-1] > GUESS_LOSS)
