"""Optimizers for large batches, by hand: LARS, LARC, LAMB, Muon, and one that turns from RMSProp into SGD.

In the first three, a layer's step is made a fixed share of its weights' norm, whatever the norm of its
gradient: with one learning rate for all, a layer with small weights and large gradients diverges before the
others have moved. In these and in Muon, biases (tensors of one dimension) take part as in plain SGD or Adam, and do
not decay.
"""

import math
from collections.abc import Callable
from functools import partial

import torch

from workshop_lib.training.schedules import STARTING_LR

TRUST = 0.001  # η: how much of its norm a layer may move in a step, at a learning rate of 1


class _ByTensor(torch.optim.Optimizer):
    """An optimizer that says how it changes one tensor `p`, by its gradient and the options of its group."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, group)
        return loss

    def update(self, p: torch.Tensor, group: dict) -> None:
        raise NotImplementedError


class Lars(_ByTensor):
    """SGD with layer-wise adaptive rates (You, Gitman and Ginsburg 2017, arXiv:1708.03888, Algorithm 1).

    v ← m·v + γ·λ·(g + β·w);  w ← w − v, with λ = η·‖w‖ / (‖g‖ + β·‖w‖) of each layer. The learning rate γ is
    inside the momentum, as in the paper. clip: LARC, which never takes a larger step than plain SGD would:
    λ ← min(λ / γ, 1).
    """

    def __init__(self, params, lr=0.1, momentum=0.9, weight_decay=0.0, trust=TRUST, clip=False):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "clip": clip}
        super().__init__(params, defaults)

    def update(self, p, group):
        step = p.grad
        if p.dim() > 1:
            step = layer_rate(p, p.grad, group) * p.grad.add(p, alpha=group["weight_decay"])
        velocity = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        velocity.mul_(group["momentum"]).add_(step, alpha=group["lr"])
        p.sub_(velocity)


def norm(values: torch.Tensor) -> torch.Tensor:
    """Of the whole tensor, also where it is sharded (FSDP): then all ranks call it, and it blocks."""
    total = values.norm()
    return total.full_tensor() if hasattr(total, "full_tensor") else total


def layer_rate(weights: torch.Tensor, gradient: torch.Tensor, group: dict) -> torch.Tensor:
    """λ of one layer; 1 where the weights or the gradients are all zero."""
    weights_norm, gradient_norm = norm(weights), norm(gradient)
    rate = group["trust"] * weights_norm / (gradient_norm + group["weight_decay"] * weights_norm)
    rate = _or_one(rate, weights_norm, gradient_norm)
    return (rate / group["lr"]).clamp(max=1.0) if group["clip"] else rate


def _or_one(rate: torch.Tensor, a_norm: torch.Tensor, b_norm: torch.Tensor) -> torch.Tensor:
    """The rate where both norms are above 0, else 1."""
    return torch.where((a_norm > 0) & (b_norm > 0), rate, torch.ones_like(rate))


class Lamb(_ByTensor):
    """Adam with layer-wise adaptive rates (You et al. 2020, arXiv:1904.00962, Algorithm 2, φ(x) = x).

    With Adam's corrected averages m and v, the step of a layer is γ·(‖w‖ / ‖u‖)·u, u = m / (√v + ε) + β·w.
    """

    def __init__(self, params, lr=0.001, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def update(self, p, group):
        (beta1, beta2), state = group["betas"], self.state[p]
        if not state:
            state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p)}
            state["exp_avg_sq"] = torch.zeros_like(p)
        state["step"] += 1
        mean = state["exp_avg"].lerp_(p.grad, 1 - beta1) / (1 - beta1 ** state["step"].item())
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
        update = mean / ((square / (1 - beta2 ** state["step"].item())).sqrt() + group["eps"])
        rate: float | torch.Tensor = 1.0
        if p.dim() > 1:
            update.add_(p, alpha=group["weight_decay"])
            weights_norm, update_norm = norm(p), norm(update)
            rate = _or_one(weights_norm / update_norm, weights_norm, update_norm)
        p.sub_(group["lr"] * rate * update)


class RmspropToSgd(_ByTensor):
    """RMSProp at first, SGD from `switch_steps` on, and a blend between (Akiba, Suzuki and Fukuda 2017,
    arXiv:1711.04325, "RMSprop warm-up", which trained ImageNet in 15 minutes).

    v ← m·v + γ·a·g + (1 − m)·ρ·(1 − a)·g / (√s + ε);  w ← w − v, with s the running mean of g², and ρ
    RMSProp's own rate. The share a of SGD grows exponentially to a half, and then in a straight line.

    The paper's rule has no factor (1 − m), with which a gradient that stays the same moves w by ρ per step,
    as in RMSProp itself, and not by ρ / (1 − m). Here ρ is Keras's default, 0.001: with the 0.0003 of a
    reproduction (github.com/crest-deep/dlframeworks), the paper's rule steps three times as far at m =
    0.9. And γ is inside the momentum, as in Lars: the same while γ is constant, which it is not in a
    gradual warm-up. For the straight line, see sgd_share.
    """

    def __init__(
        self, params, lr=0.1, momentum=0.9, weight_decay=0.0, switch_steps=100, rmsprop_lr=STARTING_LR["rmsprop"]
    ):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"switch_steps": switch_steps, "rmsprop_lr": rmsprop_lr})

    def update(self, p, group):
        state = self.state[p]
        if not state:
            state |= {"step": torch.zeros(()), "momentum_buffer": torch.zeros_like(p)}
            state["square_avg"] = torch.zeros_like(p)
        gradient = p.grad.add(p, alpha=group["weight_decay"])
        square = state["square_avg"].mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        share = sgd_share(int(state["step"]), group["switch_steps"])
        state["step"] += 1
        own_rate = (1 - group["momentum"]) * group["rmsprop_lr"] * (1 - share)
        step = gradient * (group["lr"] * share) + gradient / (square.sqrt() + 1e-8) * own_rate
        p.sub_(state["momentum_buffer"].mul_(group["momentum"]).add_(step))


def sgd_share(step: int, switch_steps: int) -> float:
    """a, from almost 0 to 1: (1 + ELU(z)) / 2, with z = 2·(done − centre) / period.

    The centre is at 0.8 of the way, the period 0.4 of it; in the paper, epochs 10 and 5. Its line past the
    centre is transcribed and reproduced as 1/2 + z, which would pass 1 before the switch and end at 3/2;
    (1 + z) / 2 goes on with the slope of the exponential, and is 1 at the switch.
    """
    if step >= switch_steps:
        return 1.0
    past_centre = (step / switch_steps - 0.8) / 0.4
    return math.exp(2 * past_centre) / 2 if past_centre < 0 else 0.5 + past_centre


class Muon(_ByTensor):
    """Momentum whose matrix is made orthogonal (Jordan et al. 2024, kellerjordan.github.io/posts/muon): a step has the
    same length in all of a layer's directions, where a gradient has a few strong ones.

    v ← m·v + g;  w ← (1 − γ·β)·w − γ·√max(1, rows / columns)·orthogonal(g + m·v). A kernel is a matrix of one row per
    output, and biases take SGD's step with the same Nesterov's momentum.
    """

    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def update(self, p, group):
        velocity = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        velocity.mul_(group["momentum"]).add_(p.grad)
        step = p.grad.add(velocity, alpha=group["momentum"])
        if p.dim() > 1:
            rows = step.flatten(1)
            step = orthogonal(rows).view_as(p) * math.sqrt(max(1, rows.shape[0] / rows.shape[1]))
            p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_(step, alpha=group["lr"])


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with its singular values brought near 1 (0.7 to 1.2), by five Newton-Schulz steps."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / wide.norm().clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if wide is matrix else x.T


def maker(options, warmup_steps: int):
    """What makes the optimizer that the options name, of the parameters and perhaps of options to change."""
    decay = {"weight_decay": options.weight_decay}
    momentum = decay | {"momentum": options.momentum}
    if options.optimizer == "sgd":
        nesterov = options.nesterov and options.momentum > 0
        return partial(torch.optim.SGD, lr=options.lr, nesterov=nesterov, fused=True, **momentum)
    if options.optimizer == "adam":  # with AdamW's decay, apart from the gradient
        return partial(torch.optim.Adam, lr=options.lr, fused=True, decoupled_weight_decay=True, **decay)
    by_name: dict[str, Callable] = {
        "lars": partial(Lars, **momentum),
        "larc": partial(Lars, clip=True, **momentum),
        "lamb": partial(Lamb, **decay),
        "rmsprop-sgd": partial(RmspropToSgd, switch_steps=warmup_steps, **momentum),
        "muon": partial(Muon, **momentum),
    }
    make = by_name[options.optimizer]
    return lambda parameters, **_: make(parameters, lr=options.lr)
