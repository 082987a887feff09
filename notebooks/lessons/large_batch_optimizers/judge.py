"""The exercises of 07d_large_batch_optimizers: LARS's rate for each layer, and a recipe for Adam."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from workshop_lib.exercises.judge import Verdict
from workshop_lib.exercises.play import Edit, played
from workshop_lib.notebook.profile import Profile

from lessons.large_batch import own_recipe

NOTEBOOK = "07d_large_batch_optimizers"
TRUST = 0.002
WEIGHT_DECAY = 0.3


def layers() -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Return names, weights and gradients of layers: one has large gradients, and in two of them a norm is zero."""
    random = torch.Generator().manual_seed(3)
    shapes = [(5, 7), (5, 7), (4, 2, 3, 3), (4, 2, 3, 3), (3, 4)]
    *drawn, small = [torch.randn(*shape, generator=random) for shape in shapes]
    return [
        ("a matrix", drawn[0], drawn[1]),
        ("a kernel", drawn[2], 100 * drawn[3]),
        ("gradients of zero", small, torch.zeros(3, 4)),
        ("weights of zero", torch.zeros(3, 4), small),
    ]


def play_layer_rate(layer_rate: Callable, comm) -> Iterator[tuple]:
    for name, weights, gradient in layers():
        rate = layer_rate(weights.clone(), gradient.clone(), TRUST, WEIGHT_DECAY)
        case = f"with ‖w‖ = {weights.norm():.4g} and ‖∇w‖ = {gradient.norm():.4g}"
        if weights.any() and gradient.any():
            yield f"{name}: trust × ‖w‖ / (‖∇w‖ + β ‖w‖)", rate, case
        else:
            advice = "where one of the norms is zero, return 1, so that the layer moves as in plain SGD."
            yield f"{name}: 1, as there is no ratio", rate, case, advice


BELOW = "(gradient_norm + weight_decay * weights_norm)"
LAYER_RATE = f"trust * weights_norm / {BELOW}"
layer_rate = played(
    "layer_rate",
    NOTEBOOK,
    play_layer_rate,
    [
        Edit("‖w‖ / (‖∇w‖ + β ‖w‖) is right, but multiply it by the trust coefficient.", ("trust * ", "")),
        Edit("you left out the weight decay: it pulls at the weights too, with β ‖w‖.", (BELOW, "gradient_norm")),
        Edit(
            "a pair of parentheses is missing: divide by the whole sum, ‖∇w‖ + β ‖w‖.",
            (LAYER_RATE, "trust * (weights_norm / gradient_norm + weight_decay * weights_norm)"),
        ),
    ],
    returns="the layer's rate",
    communicates=False,
)

ADAM = own_recipe.RecipeTask(
    "adam",
    own_recipe.FIXED | {"optimizer": "adam"},
    ("lr", "decay", "warmup_epochs", "weight_decay"),
    needed=0.94,
    quick_needed=0.8,
)


def train_adam(team, adam: Mapping[str, Any], sizes: Profile) -> dict | None:
    """Train as 128 workers with the learner's recipe for Adam; returns the record, None if it can't be tried yet."""
    return own_recipe.train(team, adam, sizes, ADAM)


def adam(adam: Mapping[str, Any], record: Mapping | None, sizes: Profile) -> Verdict:
    """The verdict on the learner's recipe for Adam, given the record of its run."""
    return own_recipe.judge(adam, record, sizes, ADAM)
