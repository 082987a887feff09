"""LARS, LAMB and Muon against what others have written, step for step.

Where no library has the rule, it is written out here from its paper, in NumPy and double precision.
"""

import numpy as np
import pytest
import pytorch_optimizer as library
import torch

from workshop_lib.training.optimizers import Lamb, Lars, Muon, maker
from workshop_lib.training.options import OPTIMIZERS, TrainOptions

STEPS = 20
SHAPES = {"weight": (7, 5), "kernel": (3, 2, 4, 4), "bias": (5,)}
WARM_UP = [0.5 * min(1, (step + 1) / 10) for step in range(STEPS)]


def parameters():
    random = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=random)) for shape in SHAPES.values()]


def gradients(step):
    random = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=random) * (1 + i) for i, shape in enumerate(SHAPES.values())]


def trained(make, rates=None):
    """Parameters after STEPS steps, with a rate for each if these are given."""
    found = parameters()
    optimizer = make(found)
    for step in range(STEPS):
        for p, gradient in zip(found, gradients(step), strict=True):
            p.grad = gradient
        if rates is not None:
            optimizer.param_groups[0]["lr"] = rates[step]
        optimizer.step()
    return [p.detach().numpy() for p in found]


def by_formula(update):
    """The same, where update(w, g, state, step) is the next w; the state begins as zeros."""
    found = []
    for index, p in enumerate(parameters()):
        w = p.detach().double().numpy()
        state = {name: np.zeros_like(w) for name in ("v", "m", "s")}
        for step in range(STEPS):
            w = update(w, gradients(step)[index].double().numpy(), state, step)
        found.append(w)
    return found


def largest_difference(a, b):
    return max(np.abs(x - y).max() / np.abs(y).max() for x, y in zip(a, b, strict=True))


def test_lars_has_the_rate_of_each_step_inside_the_momentum():
    """You et al. 2017, Algorithm 1, in a warm-up. In libraries the rate is outside: then another rule."""
    trust, decay = 0.05, 0.01

    def update(w, g, state, step):
        local = 1.0
        if w.ndim > 1:
            local = trust * np.linalg.norm(w) / (np.linalg.norm(g) + decay * np.linalg.norm(w))
            g = g + decay * w
        state["v"] = 0.9 * state["v"] + WARM_UP[step] * local * g
        return w - state["v"]

    ours = trained(lambda p: Lars(p, momentum=0.9, weight_decay=decay, trust=trust), WARM_UP)
    assert largest_difference(ours, by_formula(update)) < 1e-6
    options = {"momentum": 0.9, "weight_decay": decay, "trust_coefficient": trust}
    assert largest_difference(ours, trained(lambda p: library.LARS(p, **options), WARM_UP)) > 1e-2


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lamb_is_that_of_the_paper_and_adam_for_biases(weight_decay):
    """You et al. 2020, Algorithm 2, with φ(x) = x."""

    def update(w, g, state, step):
        state["m"] = 0.9 * state["m"] + 0.1 * g
        state["s"] = 0.999 * state["s"] + 0.001 * g**2
        mean, square = state["m"] / (1 - 0.9 ** (step + 1)), state["s"] / (1 - 0.999 ** (step + 1))
        direction = mean / (np.sqrt(square) + 1e-6) + weight_decay * w
        return w - 0.01 * np.linalg.norm(w) / np.linalg.norm(direction) * direction

    *layers, bias = trained(lambda p: Lamb(p, lr=0.01, weight_decay=weight_decay))
    assert largest_difference(layers, by_formula(update)[:2]) < 1e-6
    adam = trained(lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-6))
    assert largest_difference([bias], adam[2:]) < 1e-6


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_muon_is_pytorch_s_but_for_the_16_bits_that_it_computes_in(weight_decay, monkeypatch):
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": weight_decay}
    ours = trained(lambda p: Muon(p, **options))
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    assert largest_difference(ours[:1], trained(lambda p: torch.optim.Muon(p[:1], **options))[:1]) < 1e-5
    sgd = trained(lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True))
    assert largest_difference(ours[2:], sgd[2:]) < 1e-6, "biases"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_decay_in_every_optimizer(optimizer):
    """Without gradients, a layer shrinks; Adam's and Muon's decay is apart from the gradient, by γ·β in each step."""
    layer = torch.nn.Parameter(torch.ones(3, 4))
    made = maker(TrainOptions(optimizer=optimizer, lr=0.1, weight_decay=0.5))([layer])
    layer.grad = torch.zeros_like(layer)
    made.step()
    assert (layer < 1).all()
    if optimizer in ("adam", "muon"):
        assert layer.detach().numpy() == pytest.approx(1 - 0.1 * 0.5)
