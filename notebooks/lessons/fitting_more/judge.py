"""Judges the exercises of 06c_fitting_more: a backward pass without kept activations, and a step of master weights."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.network import network
from workshop_lib.exercises.play import Edit, played

from lessons.zero_and_fsdp import by_hand

NOTEBOOK = "06c_fitting_more"

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


def play_masters(make: Callable, comm) -> Iterator[tuple]:
    """Take small steps with a network in bf16, and show its weights, their masters and the bytes after each."""
    model = network().bfloat16()
    training = make(model.parameters(), lambda masters: torch.optim.SGD(masters, lr=2**-12, momentum=0.5))
    states = []
    for size in (1, 3, -1, 2):
        for p in model.parameters():
            p.grad = torch.full_like(p, size)
        training.step()
        masters = torch.cat([master.detach().flatten() for master in training.masters])
        weights = torch.cat([p.detach().float().flatten() for p in model.parameters()])
        states.append((masters, weights, by_hand.live_bytes(model, training.optimizer)))
    for step, (masters, _, _) in enumerate(states, 1):
        yield "the optimizer moves the masters, by all of each step", masters, f"for the masters after step {step}"
    for step, (_, weights, _) in enumerate(states, 1):
        yield "the network's weights are the masters, rounded to bf16", weights, f"for the weights after step {step}"
    held = states[-1][-1]
    text = "no more bytes are kept than those of weights, masters and optimizer"
    yield text, held, f"bytes after a step: {held}."


COPY = "weight.data.copy_(master.detach())"
MasterWeights = played(
    "MasterWeights",
    NOTEBOOK,
    play_masters,
    [
        Edit("the network never learns of the step: write each master into its weight.", (COPY, "pass")),
        Edit(
            "a step that is rounded away in the weight is lost in the master, too: never copy a weight to it.",
            ("master.grad = weight", "master.data.copy_(weight.detach()); master.grad = weight"),
        ),
        Edit(
            "the weights are in fp32 now, in the masters' own memory: `weight.data.copy_(…)` keeps them in bf16.",
            (COPY, "weight.data = master.detach()"),
        ),
        Edit("the weights' gradients are still in memory: set them to None.", ("weight.grad = None", "pass")),
        Edit("the masters' gradients are still in memory: set them to None.", ("master.grad = None", "pass")),
    ],
    communicates=False,
    raised={"grad_dtype": "a master in fp32 takes a gradient in fp32: `weight.grad.float()`."},
    unknown="give each master its weight's gradient in fp32, take the optimizer's step, and round.",
)
