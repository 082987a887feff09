"""Two exercises of 11_model_parallelism: a block cut among ranks, and tokens divided among ranks between its layers."""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from workshop_lib.judge import Exercise, Mistake, Property, close
from workshop_lib.lessons.model_parallelism import cut
from workshop_lib.lessons.model_parallelism.judge import STEPS, Cut, agree, inputs, own, steps_or_clash, take_steps
from workshop_lib.lessons.model_parallelism.tensors import allreduce, both_ways, reduce_scatter
from workshop_lib.lessons.mpi_basics.counting import CountingComm
from workshop_lib.models.vit import Block

# TOKENS divides by 2, 3 and 4 ranks.
IMAGES = 3
TOKENS = 12
WIDTH = 5
BLOCK_WIDTH = 16
HEADS = 4
BLOCK = IMAGES, TOKENS, BLOCK_WIDTH  # the shape of a block's inputs


def small_block() -> Block:
    torch.manual_seed(1)
    return Block(BLOCK_WIDTH, HEADS).double()


def observe_block(comm, cut_block: Callable) -> Cut:
    counting = CountingComm(comm)

    def make() -> nn.Module:
        block = small_block()
        cut_block(block, partial(cut.ColumnParallel, comm=counting), partial(cut.RowParallel, comm=counting))
        return block

    return steps_or_clash(make, inputs(*BLOCK), counting)


@functools.cache
def block_alone() -> Cut:
    """Take the same steps in one process."""
    return take_steps(small_block(), inputs(*BLOCK))


def block_properties(ranks: list[Cut]) -> Iterator[Property]:
    """Yield what must hold for cut_block."""
    size = len(ranks)
    right = block_alone()
    hint = f"PyTorch says: {ranks[0].clash}. A column-parallel layer reads whole tokens and returns a part of each; a "
    hint += "row-parallel layer reads parts and returns whole tokens. So which comes first in the MLP and in attention?"
    hint += " And are query, key and value all cut?"
    yield Property("the shapes fit", not ranks[0].clash, hint)
    whole = (2 * 2 + 2) * BLOCK_WIDTH  # two norms, and the biases of `out` and `down`, are on every rank
    share = (right.numbers - whole) // size + whole
    held = ranks[0].numbers
    hint = f"rank 0 holds {held} numbers instead of {share}. Which of the six linear layers is still whole?"
    yield Property(f"a rank holds 1/{size} of all six weights", all(r.numbers == share for r in ranks), hint)
    first, gradients, last = (
        [pick(rank) for rank in ranks]
        for pick in (lambda r: r.outputs[0], lambda r: r.input_gradient, lambda r: r.outputs[-1])
    )
    yield agree("every rank has one process's outputs", first, [right.outputs[0]] * size)
    yield agree("and its gradient of the inputs", gradients, [right.input_gradient] * size)
    yield agree(f"after {STEPS - 1} steps of training the outputs are still right", last, [right.outputs[-1]] * size)
    one = 2 * (size - 1) / size * 8 * math.prod(BLOCK)
    sent = max(rank.forward_bytes for rank in ranks)
    hint = f"forward sends {sent} bytes, {sent / one:.2g} allreduces. Attention needs one and the MLP one."
    yield Property("forward sends two allreduces of the tokens", close(sent, 2 * one), hint)


def _narrow_heads(block, column, row) -> None:
    whole = block.attention.query.out_features
    cut.cut_block(block, column, row)
    block.attention.head_width = block.attention.head_width * len(block.attention.query.weight) // whole


def _same_heads(block, column, row) -> None:
    cut.cut_block(block, column, row)
    block.attention.by_head = lambda x: x.unflatten(2, (block.attention.head_width, -1)).permute(0, 3, 1, 2)


cut_block = Exercise(
    "cut_block",
    observe_block,
    block_properties,
    [
        Mistake(
            _narrow_heads,
            "each rank has all heads here, but only a part of each, and softmax of a part of a score isn't a part of "
            "its softmax. Leave `head_width` alone: then each rank has fewer heads, but whole ones.",
        ),
        Mistake(
            _same_heads,
            "the numbers of one head have been spread over all heads. Leave `by_head` alone: a rank's rows of `query` "
            "already are whole heads.",
        ),
    ],
    unknown="compare with the table of the six layers: which read whole tokens, and which read parts?",
)


@dataclass(frozen=True)
class Crossed:
    """What `enter` or `leave` did on one rank."""

    output: np.ndarray
    gradient: np.ndarray
    sent_bytes: tuple[int, int]  # (forward pass, backward pass)
    clash: str = ""  # PyTorch's message about a gradient of the wrong shape; empty if the shape is right


def values(seed: int) -> torch.Tensor:
    """Return random values for all tokens: [IMAGES, TOKENS, WIDTH]."""
    return torch.randn(IMAGES, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _cross(operation: Callable, x: torch.Tensor, gradient: Callable, counting: CountingComm) -> Crossed:
    """Call the operation, then run its backward pass with gradient(shape of its output)."""
    x = x.clone().requires_grad_()
    before = counting.bytes_sent
    output = operation(x)
    between = counting.bytes_sent
    try:
        output.backward(gradient(output.shape))
    except RuntimeError as error:
        if "invalid gradient" not in str(error):
            raise
        return Crossed(output.detach().numpy(), np.empty(0), (0, 0), str(error).splitlines()[0])
    assert x.grad is not None
    sent = (between - before, counting.bytes_sent - between)
    return Crossed(output.detach().numpy().copy(), x.grad.numpy().copy(), sent)


def observe_tokens(comm, make: Callable) -> tuple[Crossed, Crossed]:
    """Run `enter` and `leave`, each with values and gradients that differ from rank to rank."""
    counting = CountingComm(comm)
    tokens = make(counting)

    def gradient(seed: int, shape: torch.Size) -> torch.Tensor:
        part = own(values(seed), comm.rank, comm.size)
        fitting = [each for each in (values(seed), part) if each.shape == shape]
        return fitting[0] if fitting else torch.zeros(shape, dtype=torch.float64)  # the output's check will fail

    mine = own(values(1), comm.rank, comm.size)
    enter = _cross(tokens.enter, mine, partial(gradient, 100 + comm.rank), counting)
    leave = _cross(tokens.leave, values(200 + comm.rank), partial(gradient, 2), counting)
    return enter, leave


def token_properties(ranks: list[tuple[Crossed, Crossed]]) -> Iterator[Property]:
    size = len(ranks)
    wholes = [values(1).numpy(), values(2).numpy()]
    sums = [sum(values(seed + r) for r in range(size)) for seed in (100, 200)]
    parts = [[own(torch.as_tensor(total), r, size).numpy() for r in range(size)] for total in sums]
    clash = ranks[0][0].clash or ranks[0][1].clash
    text = "every rank gets all tokens from `enter`"
    yield agree(text, [enter.output for enter, _ in ranks], [wholes[0]] * size)
    text = "`leave` adds up the ranks' parts and gives each rank its own tokens"
    yield agree(text, [leave.output for _, leave in ranks], parts[1])
    hint = f"PyTorch says: {clash}. A gradient has the shape of what it belongs to. So what `enter` makes larger, its "
    hint += "backward makes smaller again, and `leave` the other way round."
    yield Property("gradients have the shapes of their tensors", not clash, hint)
    text = "in backward, `enter` adds up the ranks' gradients of this rank's tokens"
    yield agree(text, [enter.gradient for enter, _ in ranks], parts[0])
    text = "in backward, `leave` gives every rank the gradient of all tokens"
    yield agree(text, [leave.gradient for _, leave in ranks], [wholes[1]] * size)
    half = (size - 1) / size * wholes[0].nbytes
    most = max(sent for both in ranks for crossed in both for sent in crossed.sent_bytes)
    text = "each sends half an allreduce, in forward and in backward"
    observed = f"one of them sends {most} bytes, but half an allreduce is {half:.0f}."
    yield Property(text, close(most, half), evidence=most / half, observed=observed)


class _KeepsItsOwn(cut.TokenParallel):
    def __init__(self, comm):
        super().__init__(comm)
        self.comm = comm
        self.own = partial(own, rank=comm.rank, size=comm.size)


class _NoSumInEnter(_KeepsItsOwn):
    def enter(self, x):
        return both_ways(x, forward=self.gather, backward=self.own)


class _NoSumInLeave(_KeepsItsOwn):
    def leave(self, parts):
        return both_ways(parts, forward=self.own, backward=self.gather)


class _WholeAllreduce(_KeepsItsOwn):
    def leave(self, parts):
        return both_ways(parts, forward=lambda t: self.own(allreduce(self.comm, t)), backward=self.gather)


class _Swapped(cut.TokenParallel):
    def __init__(self, comm):
        super().__init__(comm)
        self.gather, self.scatter_sums = self.scatter_sums, self.gather


class _Mean(cut.TokenParallel):
    def __init__(self, comm):
        super().__init__(comm)
        self.scatter_sums = lambda tensor: reduce_scatter(comm, tensor, 1) / comm.size


_SUM = "what the ranks hold are parts of one sum. Cutting out this rank's tokens loses the others' parts."
TokenParallel = Exercise(
    "TokenParallel",
    observe_tokens,
    token_properties,
    [
        Mistake(_NoSumInEnter, f"{_SUM} Add up with `self.scatter_sums` in the backward of `enter`."),
        Mistake(_NoSumInLeave, f"{_SUM} Add up with `self.scatter_sums` in the forward of `leave`."),
        Mistake(_WholeAllreduce, "An allreduce gives every rank all sums. `self.scatter_sums` gives it its own."),
        Mistake(_Swapped, "`enter` has this rank's tokens and needs all of them, so its forward is `self.gather`."),
        Mistake(_Mean, "these are parts of a sum. Add them up, and don't divide."),
    ],
)
