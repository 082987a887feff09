"""The curvature that 07 measures is the largest eigenvalue of the loss's matrix of second derivatives."""

import pytest
import torch

from lessons.large_batch import curvature


def test_power_iteration_finds_the_largest_curvature():
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2).double()
    images = torch.randn(20, 3, dtype=torch.float64)
    labels = torch.randint(2, (20,))

    def loss(weight, bias):
        return torch.nn.functional.cross_entropy(images @ weight.T + bias, labels)

    blocks = torch.autograd.functional.hessian(loss, tuple(model.parameters()))
    rows = [torch.cat([blocks[i][j].reshape(size, -1) for j in range(2)], 1) for i, size in ((0, 6), (1, 2))]
    largest = torch.linalg.eigvalsh(torch.cat(rows)).max()
    _, found = curvature.loss_and_curvature(model, images, labels, rounds=60)
    assert found == pytest.approx(largest.item(), rel=1e-3)
