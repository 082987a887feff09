"""Rank side of the exercises in 07_large_batch."""

import functools

import numpy as np
import torch

from workshop_lib.training import optimizers, schedules

# (base rate, workers, steps of warm-up), with no two alike that a mistake could confuse
CASES = [(0.01, 128, 40), (0.1, 1, 10), (0.05, 8, 1), (0.02, 4, 0)]
STEPS = 60
TRUST = 0.002


def learning_rate(comm, function) -> list[dict]:
    """The rates of the first STEPS steps of each case."""
    return [
        {
            "case": case,
            "got": [function(step, *case) for step in range(STEPS)],
            "right": [schedules.lr_at(step, STEPS, case[0] * case[1], case[2]) for step in range(STEPS)],
        }
        for case in CASES
    ]


def layer_rate(comm, function) -> list[dict]:
    """Layers of several shapes, one with large gradients, and two that have a norm of zero."""
    random = torch.Generator().manual_seed(3)
    draw = functools.partial(torch.randn, generator=random)
    layers = {
        "a matrix": (draw(5, 7), draw(5, 7)),
        "a kernel": (draw(4, 2, 3, 3), 100 * draw(4, 2, 3, 3)),
        "gradients of zero": (draw(3, 4), torch.zeros(3, 4)),
        "weights of zero": (torch.zeros(3, 4), draw(3, 4)),
    }
    group = {"trust": TRUST, "weight_decay": 0.0, "clip": False}
    found = []
    for name, (weights, gradient) in layers.items():
        given = weights.clone(), gradient.clone()
        got = function(*given, group["trust"])
        found.append(
            {
                "layer": name,
                "got": np.asarray(got, dtype=float).tolist() if not isinstance(got, str) else got,
                "right": float(optimizers.layer_rate(weights, gradient, group)),
                "norms": (float(weights.norm()), float(gradient.norm())),
                "size": weights.numel(),
                "unchanged": torch.equal(given[0], weights) and torch.equal(given[1], gradient),
            }
        )
    return found
