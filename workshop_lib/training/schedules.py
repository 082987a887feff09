"""The learning rate at each step, as plain functions of the step number.

Linear scaling and warm-up: Goyal et al., "Accurate, Large Minibatch SGD" (arXiv:1706.02677,
sections 2.1 and 2.2). Square-root scaling: Krizhevsky (arXiv:1404.5997, section 5).
"""

import math

SCALINGS = ("none", "sqrt", "linear")
DECAYS = ("none", "linear", "cosine")


def scale_lr(lr: float, scaling: str, workers: int) -> float:
    """The peak learning rate when the global batch is `workers` times that of one rank."""
    if scaling not in SCALINGS:
        raise ValueError(f"lr_scaling {scaling!r}: use {', '.join(SCALINGS)}")
    return lr * {"none": 1.0, "sqrt": math.sqrt(workers), "linear": workers}[scaling]


def lr_at(
    step: int,
    total_steps: int,
    peak_lr: float,
    warmup_steps: int = 0,
    decay: str = "none",
) -> float:
    """Learning rate of `step` (0-based): a straight line from 0 to the peak, then the decay.

    Warm-up ends at peak_lr in step warmup_steps - 1. After it, "linear" and "cosine" go from
    the peak towards 0, which they would reach one step after the last.
    """
    if decay not in DECAYS:
        raise ValueError(f"decay {decay!r}: use {', '.join(DECAYS)}")
    if step < warmup_steps:
        return peak_lr * (step + 1) / warmup_steps
    if decay == "none":
        return peak_lr
    done = (step - warmup_steps) / max(1, total_steps - warmup_steps)  # 0 .. just below 1
    if decay == "linear":
        return peak_lr * (1 - done)
    return peak_lr * (1 + math.cos(math.pi * done)) / 2
