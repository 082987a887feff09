"""A small network in float64 and random batches for it. Checks train it on one process, as the reference for training
with PyTorch on several ranks."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

SAMPLES = 5  # samples per batch
Batch = tuple[torch.Tensor, torch.Tensor]  # inputs float64 [SAMPLES, width], and labels int64 [SAMPLES]


def network(seed: int = 1) -> nn.Sequential:
    """A network with an odd number of weights, so they need padding before 2 or 4 ranks can share them equally."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def batch(rank: int, step: int, width: int = 5) -> Batch:
    """A batch that no other rank or step has."""
    random = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(SAMPLES, width, generator=random, dtype=torch.float64) * (1 + rank)
    return inputs, torch.randint(3, (SAMPLES,), generator=random)


def backward(model: nn.Module, batches: Iterable[Batch]) -> np.ndarray:
    """The gradient of the mean loss over all samples of these batches, as one vector; also leaves it in the model."""
    inputs, labels = (torch.cat(column) for column in zip(*batches, strict=True))
    model.zero_grad()
    cross_entropy(model(inputs), labels).backward()
    return gradient_of(model)


def gradient_of(model: nn.Module) -> np.ndarray:
    """All gradients of the model as one vector, with zeros for those that are missing."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([gradient.detach().flatten() for gradient in gradients]).numpy()


def weights_of(model: nn.Module) -> np.ndarray:
    """All weights of the model as one vector, whatever their layout in memory."""
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
