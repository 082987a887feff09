"""The workshop's network as a function of one weight vector: 07b_gradient_noise computes its gradients with it."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.training.models import torch_cnn

TEST_BATCH = 500


class FlatNetwork:
    """A network whose parameters, and their gradients, are views into two float32 vectors [n]."""

    def __init__(self, seed: int = 1, network: nn.Module | None = None):
        self.network = torch_cnn.build(seed) if network is None else network
        parameters = list(self.network.parameters())
        self._weights = nn.utils.parameters_to_vector(parameters).detach()
        self._gradient = torch.zeros_like(self._weights)
        nn.utils.vector_to_parameters(self._weights, parameters)
        for parameter, part in zip(parameters, self._gradient.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)

    def weights(self) -> np.ndarray:
        """A copy of the weights, float32 [n]."""
        return self._weights.numpy().copy()

    def set(self, weights: np.ndarray) -> None:
        self._weights.copy_(torch.from_numpy(weights))

    def gradient(self, weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Gradient of the mean loss over images (uint8 [b, 28, 28]) at `weights`, as a new float32 [n].

        The network keeps these weights, and `loss` holds the mean loss.
        """
        self.set(weights)
        self._gradient.zero_()
        logits = self.network(torch_cnn.normalize(torch.tensor(images)))
        loss = cross_entropy(logits, torch.tensor(labels).long())
        loss.backward()
        self.loss = loss.item()
        return self._gradient.numpy().copy()

    @torch.no_grad()
    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Share of the images (uint8 [m, 28, 28]) that the network classifies correctly with its current weights."""
        correct = 0
        for first in range(0, len(images), TEST_BATCH):
            part = slice(first, first + TEST_BATCH)
            logits = self.network(torch_cnn.normalize(torch.tensor(images[part])))
            correct += int((logits.argmax(dim=1) == torch.tensor(labels[part]).long()).sum())
        return correct / len(images)
