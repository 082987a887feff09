"""The first rung of the equivalence ladder: compare training on this run's N ranks with training in one process.

Synchronous SGD on N ranks does the same arithmetic as one process with the global batch. The results differ only by
rounding.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from workshop_lib.machine.world import World, choose_device, detect
from workshop_lib.training.options import TrainOptions

STEPS = 10
BATCH_SIZE = 16  # per rank
# Keras keeps the learning rate inside the momentum, PyTorch outside. With a constant rate, both give the same steps.
CONSTANT_LR: dict[str, Any] = {"lr": 0.02, "lr_scaling": "none", "warmup_epochs": 0.0, "decay": "none"}


def compare(options: TrainOptions) -> dict:
    """Train STEPS steps with this backend on all ranks, then in one process with the global batch.

    Returns the "largest_relative_difference" of any parameter and the number of "steps" on rank 0, and {} on the
    other ranks. The one process uses PyTorch, whatever the backend's framework. All ranks call it.
    """
    # Imported here because the notebook's process uses this file too, and PyTorch takes seconds to import.
    from workshop_lib.training.backends.pytorch import TorchBackend
    from workshop_lib.training.trainer import train

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
        together = Path(folder) / "together"
        alone = Path(folder) / "alone"
        train(replace(short, checkpoint=str(together)), world=world)
        if world.rank != 0:
            return {}
        one_process = TorchBackend(World(), choose_device(options.device, world))
        whole = replace(short, emulate_workers=world.world_size, checkpoint=str(alone))
        train(whole, backend=one_process)
        difference = largest_relative_difference(weights(together), weights(alone))
    return {"largest_relative_difference": difference, "steps": STEPS}


def weights(path: str | Path) -> dict:
    """Return the parameters in a checkpoint, by name."""
    import torch  # imported here for the same reason as in compare

    return torch.load(path, weights_only=True, map_location="cpu")["model"]


def largest_relative_difference(a: dict, b: dict) -> float:
    """Return the largest max|a - b| / max|b| over all tensors."""
    return max(float((a[k] - b[k]).abs().max() / b[k].abs().max()) for k in b)
