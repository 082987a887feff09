"""Runs for the equivalence ladder, and how two ends of it are compared."""

import torch

GLOBAL_BATCH = 256
STEPS = 50
# 25 steps an epoch; in the ragged run the last of them has 3 samples, so that one of four
# ranks has none, and ranks of two have different numbers.
SAMPLES = {"even": 25 * GLOBAL_BATCH, "ragged": 24 * GLOBAL_BATCH + 3}


def ladder_run(folder, network, case, ranks, backend, **more):
    name = f"{network}-{case}-{backend}-{ranks}"
    options = {
        "backend": "mpi" if backend == "base" else backend,
        "batch_size": GLOBAL_BATCH // ranks,
        "train_samples": SAMPLES[case],
        "max_steps": STEPS,
        "checkpoint": str(folder / f"{name}.pt"),
    }
    return {"name": name, "options": options, "network": network, "backend_object": backend} | more


def weights(folder, name):
    return torch.load(folder / f"{name}.pt", weights_only=True)["model"]


def largest_relative_difference(a, b):
    """Over all tensors, the largest max|a - b| / max|b|."""
    return max(float((a[k] - b[k]).abs().max() / b[k].abs().max()) for k in b)
