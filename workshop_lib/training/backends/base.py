"""One process, no communication: what a training script looks like before it is distributed.

The other backends replace these methods. In a training step the loop calls

    loss = loss_sum(local batch) * world_size / n_global
    loss.backward()
    backend.average_gradients()
    optimizer.step()

so that the mean over ranks is exactly the gradient of the mean loss over the global batch,
also when the ranks hold different numbers of samples, or none.
"""

import numpy as np
import torch
from torch import nn

from workshop_lib.training.world import World


class Backend:
    """Communication of one run. Every method is called by all ranks, in the same order."""

    name = "base"
    # Seconds this rank spent in average_gradients; None where that cannot be told apart.
    communication_s: float | None = 0.0
    # time.perf_counter() when this rank entered and left the last averaging's blocking collective;
    # None where there is none, or where it overlaps with backward.
    averaging_span: tuple[float, float] | None = None

    def __init__(self, world: World, device: torch.device):
        self.world, self.device = world, device
        if self.name == "base" and world.world_size > 1:
            raise ValueError("the base backend is for one process: choose another for more ranks")

    def prepare(self, model: nn.Module) -> nn.Module:
        """Give every rank the weights of rank 0, and return the module to train with."""
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer to step with."""
        return optimizer

    def learner(self, options, train_split, test_split):
        """What computes on this rank: see training/learners. Called by all ranks together."""
        from workshop_lib.training.learners.pytorch import TorchLearner

        return TorchLearner(options, self, train_split, test_split)

    def average_gradients(self) -> None:
        """After it, every gradient is the mean over ranks. Blocks; called after backward."""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum of each float64 or int64 value over ranks, the same on every rank. Blocks."""
        return values

    def allgather(self, value) -> list:
        """The (picklable) value of each rank, by rank, on every rank. Blocks."""
        return [value]

    def close(self) -> None:
        """Called once, after the run or its failure."""
