"""The learning rate at each step, as plain functions of the step number.

Linear scaling and both kinds of warm-up are from Goyal et al., "Accurate, Large Minibatch SGD" (arXiv:1706.02677,
sections 2.1 and 2.2), and so are the drops to a tenth after epochs 30, 60 and 80 of 90 (section 5.1). Square-root
scaling: Krizhevsky (arXiv:1404.5997, section 5). Polynomial decay of power 2: You et al. (arXiv:1708.03888,
section 5). Cosine: Loshchilov and Hutter (arXiv:1608.03983, equation 5, without restarts). "inverse" is
1 / (1 + 99·t), where t is the fraction of the steps after warm-up that are done. It falls to END. Because it falls
as 1 / t does, it meets the condition for convergence of Robbins and Monro (1951).
"""

import math

from workshop_lib.errors import InputError

SCALINGS = ("none", "sqrt", "linear")
WARMUPS = ("linear", "constant")
END = 0.01  # fraction of the peak that "exponential" and "inverse" would reach one step after the last
# Fractions of the steps after warm-up at which "step" drops to a tenth: 30, 60 and 80 of 90 epochs.
DROPS = (1 / 3, 2 / 3, 8 / 9)

# Fraction of the peak that is left when a fraction `done`, from 0 to just below 1, of the steps after warm-up is done.
SHAPES = {
    "none": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "polynomial": lambda done: (1 - done) ** 2,
    "step": lambda done: 0.1 ** sum(done >= drop for drop in DROPS),
    "exponential": lambda done: END**done,
    "inverse": lambda done: 1 / (1 + done * (1 / END - 1)),
}
DECAYS = tuple(SHAPES)


def scale_lr(lr: float, scaling: str, workers: int) -> float:
    """Return the peak learning rate when the global batch is `workers` times the batch of one rank."""
    return lr * {"none": 1.0, "sqrt": math.sqrt(workers), "linear": workers}[scaling]


def lr_at(
    step: int,
    total_steps: int,
    peak_lr: float,
    warmup_steps: int = 0,
    decay: str = "none",
    warmup_lr: float | None = None,
) -> float:
    """Return the learning rate of `step` (0-based): first the warm-up, then the decay.

    Gradual warm-up rises in a straight line from 0 and reaches peak_lr in step warmup_steps - 1. If warmup_lr is given,
    the warm-up has that constant rate instead. The decay then goes from the peak towards its final value, which it
    would reach one step after the last. Raises InputError for an unknown decay.
    """
    if decay not in SHAPES:
        raise InputError(f"decay {decay!r}: use {', '.join(DECAYS)}")
    if step < warmup_steps:
        return peak_lr * (step + 1) / warmup_steps if warmup_lr is None else warmup_lr
    return peak_lr * SHAPES[decay]((step - warmup_steps) / max(1, total_steps - warmup_steps))
