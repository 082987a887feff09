"""Judges the exercise of 06c_fitting_more: the backward pass of a block whose activations weren't kept."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.network import network
from workshop_lib.exercises.play import Edit, played

NOTEBOOK = "06c_fitting_more"

__all__ = ["backward_again", "written"]

written = partial(own_or_solution, notebook=NOTEBOOK)


def play_backward(backward_again: Callable, comm) -> Iterator[tuple]:
    """Call it as PyTorch does, which records nothing meanwhile."""
    random = torch.Generator().manual_seed(1)
    x = torch.randn(4, 5, generator=random, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(4, 3, generator=random, dtype=torch.float64)
    block = network()
    calls: list[int] = []
    block.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        result = backward_again(block, x, gradient)
    observed = "x has one: autograd goes on to the layers before it by itself."
    yield "what comes before the block gets no gradient yet", x.grad is None, observed
    yield "it returns the gradient of x", result
    gradients = [p.grad for p in block.parameters()]
    yield "the block's parameters have their gradients", gradients, "", "Does the backward pass reach the parameters?"
    observed = f"it computed the block {len(calls)} times."
    yield "the block is computed once more", len(calls), observed, "One forward pass of the block is enough."


backward_again = played(
    "backward_again",
    NOTEBOOK,
    play_backward,
    [
        Edit(
            "`gradient` is the gradient of the block's output, which the layers after it have computed: start from it.",
            ("y.backward(gradient)", "y.backward(torch.ones_like(y))"),
        ),
        Edit(
            "x still belongs to the layers before it: `x.detach().requires_grad_()` is a tensor of its own.",
            ("x.detach().requires_grad_()", "x"),
        ),
        Edit(
            "the block's parameters need their gradients, too: `y.backward(gradient)` computes all of them.",
            ("y.backward(gradient)\n    return x.grad", "return torch.autograd.grad(y, x, gradient)[0]"),
        ),
    ],
    returns="the gradient of x",
    in_place=True,
    communicates=False,
)
