"""The exercise of 07f_trainer_and_generators: a loss for answers that older weights wrote."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played

NOTEBOOK = "07f_trainer_and_generators"
written = partial(own_or_solution, notebook=NOTEBOOK)
# Importance ratios of the digits of two answers. The first answer has a positive advantage, the second a negative one.
LITTLE = [[1.0, 1.1, 0.9], [0.85, 1.15, 1.0]]
AS_ASKED = [[1.3, 1.5, 2.0], [0.7, 0.5, 0.6]]
OTHER_WAY = [[0.7, 0.5, 0.6], [1.3, 1.5, 2.0]]


def play_clipped_loss(clipped_loss: Callable, comm) -> Iterator[tuple]:
    old = torch.tensor([[0.2, 0.3, 0.1], [0.1, 0.25, 0.15]]).log()
    advantage = torch.tensor([[0.5], [-0.25]])
    for ratios, text in (
        (LITTLE, "each digit counts with its advantage times its importance ratio"),
        (AS_ASKED, "a digit stops pushing once its probability has changed by 20 % as its advantage asks"),
        (OTHER_WAY, "a digit still pushes if its probability has changed in the other direction"),
    ):
        new = (old + torch.tensor(ratios).log()).requires_grad_()
        loss = clipped_loss(new, old, advantage)
        (gradient,) = torch.autograd.grad(loss, new, allow_unused=True)
        observed = f"the digits' ratios were {ratios}, and the advantages 0.5 and -0.25."
        yield text, loss.detach(), observed
        yield f"{text}, in the gradient, too", gradient, observed


PRODUCTS = "torch.minimum(advantage * ratio, advantage * clipped)"
clipped_loss = played(
    "clipped_loss",
    NOTEBOOK,
    play_clipped_loss,
    [
        Edit("a difference of log-probabilities isn't a ratio yet: take its exponential.", (".exp()", "")),
        Edit("the ratio is upside down: how likely is the digit *now*, beside then?", ("new - old", "old - new")),
        Edit(
            "the optimizer makes the loss smaller, but a large advantage is good: change the sign.", ("-torch", "torch")
        ),
        Edit(
            "it clips on both sides, so a digit that moved the wrong way never comes back: take the smaller product.",
            (PRODUCTS, "(advantage * clipped)"),
        ),
        Edit(
            "the smaller *ratio* isn't the smaller *product* if the advantage is negative: multiply first.",
            (PRODUCTS, "(advantage * torch.minimum(ratio, clipped))"),
        ),
    ],
    returns="the mean loss, a tensor of one number",
    communicates=False,
)
