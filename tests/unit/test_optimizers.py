"""LARS, LARC and LAMB against what others have written, step for step."""

import numpy as np
import pytest
import torch

from workshop_lib.training.optimizers import TRUST, Lamb, Lars

STEPS = 20
SHAPES = {"weight": (7, 5), "kernel": (3, 2, 4, 4), "bias": (5,)}


def parameters():
    random = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=random)) for shape in SHAPES.values()]


def gradients(step):
    random = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=random) * (1 + i) for i, shape in enumerate(SHAPES.values())]


def trained(make):
    found = parameters()
    optimizer = make(found)
    for step in range(STEPS):
        for p, gradient in zip(found, gradients(step), strict=True):
            p.grad = gradient
        optimizer.step()
    return [p.detach().numpy() for p in found]


def largest_difference(a, b):
    return max(np.abs(x - y).max() / np.abs(y).max() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("weight_decay", [0.0, 1e-4])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_lars_is_that_of_a_library(weight_decay, momentum):
    import pytorch_optimizer as library

    options = {"lr": 0.5, "momentum": momentum, "weight_decay": weight_decay}
    theirs = trained(lambda p: library.LARS(p, trust_coefficient=TRUST, **options))
    assert largest_difference(trained(lambda p: Lars(p, **options)), theirs) < 1e-6
    assert largest_difference(trained(lambda p: torch.optim.SGD(p, **options)), theirs) > 1e-2


def test_larc_takes_no_larger_step_than_sgd():
    """Where the layer's own rate is the larger, it is SGD; where it is the smaller, LARS at a rate of 1."""
    sgd = trained(lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9))
    assert largest_difference(trained(lambda p: Lars(p, lr=0.01, trust=1e3, clip=True)), sgd) < 1e-6
    small = trained(lambda p: Lars(p, lr=1.0, trust=1e-3))
    assert largest_difference(trained(lambda p: Lars(p, lr=1.0, trust=1e-3, clip=True)), small) < 1e-6


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_lamb_is_that_of_keras(weight_decay):
    keras = pytest.importorskip("keras")
    theirs = []
    for index, p in enumerate(parameters()[:2]):  # Keras scales biases too
        variable = keras.Variable(p.detach().numpy())
        optimizer = keras.optimizers.Lamb(learning_rate=0.01, epsilon=1e-6)
        optimizer.build([variable])
        for step in range(STEPS):
            # Keras lets weights decay before the step, and not as a part of it.
            optimizer.apply([gradients(step)[index].numpy()], [variable])
        theirs.append(np.asarray(variable))
    ours = trained(lambda p: Lamb(p, lr=0.01, weight_decay=weight_decay))[:2]
    same = largest_difference(ours, theirs) < 1e-6
    assert same == (weight_decay == 0.0)
