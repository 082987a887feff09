"""Optimizers for large batches, written by hand: LARS, LAMB and Muon.

The first two make a layer's step a fixed fraction of the norm of its weights, whatever the norm of its gradient. With
a single learning rate for all layers, a layer with small weights and large gradients diverges before the others have
moved. All three update biases (one-dimensional tensors) as plain SGD or Adam does, and without weight decay.
"""

import math
from collections.abc import Callable
from functools import partial

import torch

TRUST = 0.001  # η: the fraction of its norm that a layer may move in one step at a learning rate of 1


class _ByTensor(torch.optim.Optimizer):
    """Base of optimizers whose `update` changes one tensor `p`, given its gradient and the options of its group."""

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

    v ← m·v + γ·λ·(g + β·w);  w ← w − v, with λ = η·‖w‖ / (‖g‖ + β·‖w‖) for each layer. The learning rate γ is inside
    the momentum, as in the paper.
    """

    def __init__(self, params, lr=0.1, momentum=0.9, weight_decay=0.0, trust=TRUST):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    def update(self, p, group):
        step = p.grad
        if p.dim() > 1:
            step = layer_rate(p, p.grad, group) * p.grad.add(p, alpha=group["weight_decay"])
        velocity = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        velocity.mul_(group["momentum"]).add_(step, alpha=group["lr"])
        p.sub_(velocity)


def norm(values: torch.Tensor) -> torch.Tensor:
    """Return the norm of the whole tensor. If the tensor is sharded (FSDP), all ranks call this, and it blocks."""
    total = values.norm()
    return total.full_tensor() if hasattr(total, "full_tensor") else total


def layer_rate(weights: torch.Tensor, gradient: torch.Tensor, group: dict) -> torch.Tensor:
    """Return λ for one layer, or 1 if its weights or its gradients are all zero."""
    weights_norm = norm(weights)
    gradient_norm = norm(gradient)
    rate = group["trust"] * weights_norm / (gradient_norm + group["weight_decay"] * weights_norm)
    return _or_one(rate, weights_norm, gradient_norm)


def _or_one(rate: torch.Tensor, a_norm: torch.Tensor, b_norm: torch.Tensor) -> torch.Tensor:
    """Return the rate where both norms are above 0, else 1."""
    return torch.where((a_norm > 0) & (b_norm > 0), rate, torch.ones_like(rate))


class Lamb(_ByTensor):
    """Adam with layer-wise adaptive rates (You et al. 2020, arXiv:1904.00962, Algorithm 2, φ(x) = x).

    With Adam's bias-corrected averages m and v, a layer's step is γ·(‖w‖ / ‖u‖)·u, where u = m / (√v + ε) + β·w.
    """

    def __init__(self, params, lr=0.001, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def update(self, p, group):
        beta1, beta2 = group["betas"]
        state = self.state[p]
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
            weights_norm = norm(p)
            update_norm = norm(update)
            rate = _or_one(weights_norm / update_norm, weights_norm, update_norm)
        p.sub_(group["lr"] * rate * update)


class Muon(_ByTensor):
    """SGD whose momentum matrix is made orthogonal (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

    A step then has the same length in all directions of a layer, whereas a gradient has a few strong directions.

    v ← m·v + g;  w ← (1 − γ·β)·w − γ·√max(1, rows / columns)·orthogonal(g + m·v). A kernel is treated as a matrix with
    one row per output. Biases take SGD's step with the same Nesterov momentum.
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
    """Return the matrix with its singular values brought close to 1 (0.7 to 1.2) by five Newton-Schulz steps."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / wide.norm().clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if wide is matrix else x.T


def maker(options):
    """Return a function that creates the optimizer named by the options, given the parameters to optimize.

    The function also takes keyword arguments, which override options of PyTorch's own optimizers only.
    """
    decay = {"weight_decay": options.weight_decay}
    momentum = decay | {"momentum": options.momentum}
    if options.optimizer == "sgd":
        nesterov = options.nesterov and options.momentum > 0
        return partial(torch.optim.SGD, lr=options.lr, nesterov=nesterov, fused=True, **momentum)
    if options.optimizer == "adam":  # weight decay is separate from the gradient, as in AdamW
        return partial(torch.optim.Adam, lr=options.lr, fused=True, decoupled_weight_decay=True, **decay)
    by_name: dict[str, Callable] = {
        "lars": partial(Lars, **momentum),
        "lamb": partial(Lamb, **decay),
        "muon": partial(Muon, **momentum),
    }
    make = by_name[options.optimizer]
    return lambda parameters, **_: make(parameters, lr=options.lr)
