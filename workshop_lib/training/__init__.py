"""Training on every rank: one loop, and one short backend file a framework."""

import math
from collections.abc import Mapping

KINDS = ("parameters", "gradients", "optimizer")  # of memory: the model's states
SCHEMA = 1  # of the run records: what writes them and what reads them agree on it
GUESS_LOSS, HUGE = math.log(10), 10  # of ten classes, guessed with equal probabilities; and how many times that is huge


def diverged(row: Mapping) -> bool:
    """Whether the loss left all bounds in this epoch (record.EpochRow): it is not finite, or it was huge and is
    still above that of a guess."""
    losses = [row[name] for name in ("train_loss", "test_loss") if name in row]
    return None in losses or (losses[0] > HUGE * GUESS_LOSS and losses[-1] > GUESS_LOSS)
