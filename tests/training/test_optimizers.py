"""LARS, LARC, LAMB and RMSProp to SGD against what others have written, step for step.

Where no library has the rule, it is written out here from its paper, in NumPy and double precision.
"""

import numpy as np
import pytest
import pytorch_optimizer as library
import torch
from torch.nn import functional

from workshop_lib.training.optimizers import TRUST, Lamb, Lars, Muon, RmspropToSgd, maker, orthogonal, sgd_share
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


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 1e-4), (0.9, 0.0), (0.9, 1e-4)])
def test_lars_is_that_of_a_library(momentum, weight_decay):
    options = {"lr": 0.5, "momentum": momentum, "weight_decay": weight_decay}
    theirs = trained(lambda p: library.LARS(p, trust_coefficient=TRUST, **options))
    assert largest_difference(trained(lambda p: Lars(p, **options)), theirs) < 1e-6
    assert largest_difference(trained(lambda p: torch.optim.SGD(p, **options)), theirs) > 1e-2


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


def test_larc_takes_no_larger_step_than_sgd():
    """Where the layer's own rate is the larger, it is SGD; where it is the smaller, LARS at a rate of 1."""
    sgd = trained(lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9))
    assert largest_difference(trained(lambda p: Lars(p, lr=0.01, trust=1e3, clip=True)), sgd) < 1e-6
    small = trained(lambda p: Lars(p, lr=1.0, trust=1e-3))
    assert largest_difference(trained(lambda p: Lars(p, lr=1.0, trust=1e-3, clip=True)), small) < 1e-6


def test_larc_moves_a_layer_of_zeros_as_sgd_does():
    """As in NVIDIA's apex: a layer that has no rate of its own takes SGD's step, also at learning rates above 1."""
    p = torch.nn.Parameter(torch.zeros(2, 2))
    p.grad = torch.ones(2, 2)
    Lars([p], lr=4.0, momentum=0.0, clip=True).step()
    assert torch.equal(p.detach(), torch.full((2, 2), -4.0))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_larc_clips_layer_by_layer(momentum):
    """The rule of NVIDIA's apex (apex/parallel/LARC.py), of layers alone: there it is of biases too."""
    lr, trust, decay = 0.015, 0.02, 0.01
    clipped = []

    def update(w, g, state, step):
        if w.ndim > 1:
            w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(g)
            rate = trust * w_norm / (g_norm + decay * w_norm + 1e-8) / lr
            clipped.append((w.ndim, rate > 1))
            g = min(rate, 1) * (g + decay * w)
        state["v"] = momentum * state["v"] + g
        return w - lr * state["v"]

    expected = by_formula(update)
    assert (2, True) in clipped and (4, False) in clipped, "both kinds in one model"
    ours = trained(lambda p: Lars(p, lr, momentum, decay, trust, clip=True))
    assert largest_difference(ours, expected) < 1e-6


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


def elu_share(step, switch_steps):
    """Akiba et al. 2017: as the ELU, about epoch 10 of 12.5 with a period of 5, and at most 1."""
    z = 2 * (12.5 * step / switch_steps - 10) / 5
    return min(1.0, (1 + functional.elu(torch.tensor(z, dtype=torch.float64)).item()) / 2)


def test_the_share_of_sgd_has_the_shape_of_the_elu():
    found = [sgd_share(step, 100) for step in range(111)]
    assert found == pytest.approx([elu_share(step, 100) for step in range(111)], rel=1e-12)
    assert [found[step] for step in (0, 80, 90, 100, 110)] == pytest.approx([np.exp(-4) / 2, 0.5, 0.75, 1.0, 1.0])
    assert sgd_share(0, 0) == 1.0, "without a warm-up it is SGD"


def test_rmsprop_to_sgd_begins_as_rmsprop_and_ends_as_sgd():
    """RMSProp with momentum at a rate of (1 − m)·ρ; the first share of SGD is 0.9 %, and its rate here 0."""
    share, rate = np.exp(-4) / 2, 0.1
    theirs = trained(lambda p: torch.optim.RMSprop(p, 0.1 * rate * (1 - share), momentum=0.9))
    ours = trained(lambda p: RmspropToSgd(p, lr=0.0, switch_steps=10**9, rmsprop_lr=rate))
    assert largest_difference(ours, theirs) < 1e-6
    sgd = trained(lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9))
    assert largest_difference(trained(lambda p: RmspropToSgd(p, lr=0.02, switch_steps=0)), sgd) < 1e-6


def test_rmsprop_to_sgd_is_the_paper_s_rule_but_for_the_factor_that_it_names():
    """Akiba et al. 2017, in all phases: Δ ← m·Δ − (α_SGD + α_RMSprop / (√s + ε))·g;  w ← w + η·Δ."""
    lr, rate = 0.02, 0.05

    def update(w, g, state, step):
        share = elu_share(step, 16)
        alpha = (1 - 0.9) * (1 - share) * rate / lr
        state["s"] = 0.99 * state["s"] + 0.01 * g**2
        state["v"] = 0.9 * state["v"] - (share + alpha / (np.sqrt(state["s"]) + 1e-8)) * g
        return w + lr * state["v"]

    ours = trained(lambda p: RmspropToSgd(p, lr, 0.9, switch_steps=16, rmsprop_lr=rate))
    assert largest_difference(ours, by_formula(update)) < 1e-6


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_muon_is_pytorch_s_but_for_the_16_bits_that_it_computes_in(weight_decay, monkeypatch):
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": weight_decay}
    ours = trained(lambda p: Muon(p, **options))
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    assert largest_difference(ours[:1], trained(lambda p: torch.optim.Muon(p[:1], **options))[:1]) < 1e-5
    sgd = trained(lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True))
    assert largest_difference(ours[2:], sgd[2:]) < 1e-6, "biases"


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (6, 6)])
def test_orthogonal_brings_all_singular_values_near_1(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonal(matrix))
    assert 0.5 < values.min() < values.max() < 1.3


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_decay_in_every_optimizer(optimizer):
    """Without gradients, a layer shrinks; Adam's and Muon's decay is apart from the gradient, by γ·β in each step."""
    layer = torch.nn.Parameter(torch.ones(3, 4))
    made = maker(TrainOptions(optimizer=optimizer, lr=0.1, weight_decay=0.5), 0)([layer])
    layer.grad = torch.zeros_like(layer)
    made.step()
    assert (layer < 1).all()
    if optimizer in ("adam", "muon"):
        assert layer.detach().numpy() == pytest.approx(1 - 0.1 * 0.5)
