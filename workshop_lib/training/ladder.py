"""The equivalence ladder's first rung, on the ranks at hand: N ranks against one process.

Synchronous SGD on N ranks is the same arithmetic as one process with the global batch. They differ by
rounding.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

from workshop_lib.training.options import TrainOptions

STEPS = 10
BATCH_SIZE = 16  # a rank
# Keras keeps the learning rate inside the momentum, PyTorch outside: alike while the rate is constant.
CONSTANT_LR = {"lr": 0.02, "lr_scaling": "none", "warmup_epochs": 0.0, "decay": "none"}


def compare(options: TrainOptions) -> dict:
    """Train STEPS steps with this backend on all ranks, then in one process with the global batch.

    Returns, on rank 0, "largest_relative_difference" of a parameter, and "steps"; {} on the others. The one
    process is PyTorch's, whatever the backend's framework. All ranks call it.
    """
    from workshop_lib.training import device, loop
    from workshop_lib.training.backends.base import Backend
    from workshop_lib.training.world import World, detect

    world = detect()
    short = replace(
        options,
        epochs=1,
        batch_size=BATCH_SIZE,
        train_samples=STEPS * BATCH_SIZE * world.world_size,
        emulate_workers=None,
        max_steps=None,
        resume=False,
        **CONSTANT_LR,
    )
    with tempfile.TemporaryDirectory() as folder:
        together, alone = Path(folder) / "together", Path(folder) / "alone"
        loop.train(replace(short, checkpoint=str(together)), world=world)
        if world.rank != 0:
            return {}
        one_process = Backend(World(0, 1, 0, "single"), device.choose(options.device, world))
        whole = replace(short, emulate_workers=world.world_size, checkpoint=str(alone))
        loop.train(whole, backend=one_process)
        difference = largest_relative_difference(weights(together), weights(alone))
    return {"largest_relative_difference": difference, "steps": STEPS}


def weights(path: str | Path) -> dict:
    """The parameters in a checkpoint, by name."""
    import torch

    return torch.load(path, weights_only=True, map_location="cpu")["model"]


def largest_relative_difference(a: dict, b: dict) -> float:
    """Over all tensors, the largest max|a - b| / max|b|."""
    return max(float((a[k] - b[k]).abs().max() / b[k].abs().max()) for k in b)
