"""Judges the exercises of 11_model_parallelism: layers cut by columns and by rows, a block, and shared tokens."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played
from workshop_lib.exercises.solutions import Solution
from workshop_lib.training.collectives.counting import CountingComm
from workshop_lib.training.models.vit import Block

NOTEBOOK = "11_model_parallelism"
written = partial(own_or_solution, notebook=NOTEBOOK)
# IN and OUT divide by 2, 3 and 4 ranks.
ROWS = 30
IN = 12
OUT = 24
STEPS = 3
LR = 0.01
TRAINED = f"after {STEPS - 1} steps of training the outputs are still right"


@dataclass(frozen=True)
class Cut:
    """What a few steps with the learner's layer did on one rank."""

    numbers: int  # how many numbers the layer's parameters hold
    outputs: list[np.ndarray]  # one array per forward pass
    input_gradient: np.ndarray  # the gradient of x in the first step
    forward_bytes: int  # bytes sent in the first forward pass
    backward_bytes: int  # bytes sent in the first backward pass


def small_linear() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(IN, OUT).double()


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def take_steps(layer: nn.Module, x: torch.Tensor, counting: CountingComm) -> Cut:
    """Take STEPS steps of SGD, with half the sum of the squared outputs as the loss, and return what they did."""
    outputs = []
    gradient = np.empty(0)
    forward_bytes = 0
    backward_bytes = 0
    for step in range(STEPS):
        x = x.detach().requires_grad_()
        before = counting.bytes_sent
        output = layer(x)
        between = counting.bytes_sent
        outputs.append(output.detach().numpy().copy())
        layer.zero_grad()
        (output**2).sum().div(2).backward()
        if step == 0:
            gradient = np.zeros(x.shape) if x.grad is None else x.grad.numpy().copy()
            forward_bytes = between - before
            backward_bytes = counting.bytes_sent - between
        with torch.no_grad():
            for p in layer.parameters():
                if p.grad is not None:
                    p.sub_(LR * p.grad)
    numbers = sum(p.numel() for p in layer.parameters())
    return Cut(numbers, outputs, gradient, forward_bytes, backward_bytes)


def play_columns(column_parallel: Callable, comm) -> Iterator[tuple]:
    counting = CountingComm(comm)
    seen = take_steps(column_parallel(small_linear(), counting), inputs(ROWS, IN), counting)
    advice = "Cut the weight with `shard`, and the bias too."
    yield f"a rank holds 1/{comm.size} of the weight", seen.numbers, "of the layer's numbers", advice
    yield "rank r has the r-th part of one process's outputs", seen.outputs[0]
    yield "every rank has the gradient of the whole x", seen.input_gradient
    yield TRAINED, seen.outputs[-1]
    yield "forward sends nothing", seen.forward_bytes, "of the bytes sent in forward"
    yield "backward sends one allreduce", seen.backward_bytes, "of the bytes sent in backward"


def play_rows(row_parallel: Callable, comm) -> Iterator[tuple]:
    counting = CountingComm(comm)
    x = own(inputs(ROWS, IN), comm.rank, comm.size)
    seen = take_steps(row_parallel(small_linear(), counting), x, counting)
    weight = IN * OUT // comm.size
    held = weight + OUT if seen.numbers == weight else seen.numbers  # a layer may keep its bias elsewhere
    advice = "Cut the weight with `shard`, and keep one bias."
    yield f"a rank holds 1/{comm.size} of the weight", held, "of the layer's numbers", advice
    yield "every rank has one process's outputs", seen.outputs[0]
    yield "rank r has the gradient of its part of x", seen.input_gradient
    yield TRAINED, seen.outputs[-1]
    yield "forward sends one allreduce", seen.forward_bytes, "of the bytes sent in forward"
    yield "backward sends nothing", seen.backward_bytes, "of the bytes sent in backward"


def if_shapes_clash(hint: str) -> dict[str, str]:
    """The hint for each of PyTorch's messages about shapes that don't fit."""
    return dict.fromkeys(("shapes cannot be multiplied", "must match the", "size mismatch", "Expected size for"), hint)


def own(tensor: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """Return the rank's part of a tensor along its second dimension."""
    return tensor.chunk(size, 1)[rank].contiguous()


SUM = "partial(lesson.allreduce, self.comm)"
ColumnParallel = played(
    "ColumnParallel",
    NOTEBOOK,
    play_columns,
    [
        Edit(
            "backward gives x only what came through this rank's own outputs. x went into the parts of all ranks, so "
            "its gradient is the sum over ranks: `backward=partial(lesson.allreduce, self.comm)`.",
            (SUM, "lesson.same"),
        ),
        Edit(
            "x is already whole on every rank, so forward has nothing to add up: it would compute with p times x.",
            ("forward=lesson.same", f"forward={SUM}"),
        ),
    ],
    raised=if_shapes_clash(
        "`layer.weight` has the shape [outputs, inputs], and this layer cuts its outputs, so take "
        "`lesson.shard(layer.weight, 0, comm)`. The bias has a number per output, so it's cut, too."
    ),
)

PART = "linear(x, self.weight)"
RowParallel = played(
    "RowParallel",
    NOTEBOOK,
    play_rows,
    [
        Edit(
            "each rank has only its own inputs' part of every sum. Add the parts up: "
            "`lesson.both_ways(part, forward=partial(lesson.allreduce, self.comm), backward=…)`.",
            (SUM, "lesson.same"),
        ),
        Edit(
            "the gradient is p times too large. It arrives whole and equal on every rank, so backward has nothing to "
            "add up: `backward=lesson.same`.",
            ("backward=lesson.same", f"backward={SUM}"),
        ),
        Edit(
            "the bias is in it p times, once from every rank. Add it once, after the allreduce.",
            (PART, "linear(x, self.weight, self.bias)"),
            (" + self.bias", ""),
        ),
    ],
    raised=if_shapes_clash(
        "`layer.weight` has the shape [outputs, inputs], and this layer cuts its inputs, so take "
        "`lesson.shard(layer.weight, 1, comm)`. The bias belongs to the outputs, which are whole."
    ),
)

# TOKENS divides by 2, 3 and 4 ranks.
IMAGES = 3
TOKENS = 12
WIDTH = 5
BLOCK_WIDTH = 16
HEADS = 4


def play_block(cut_block: Callable, comm) -> Iterator[tuple]:
    counting = CountingComm(comm)

    torch.manual_seed(1)
    block = Block(BLOCK_WIDTH, HEADS).double()
    column = Solution(NOTEBOOK, "ColumnParallel").load()
    row = Solution(NOTEBOOK, "RowParallel").load()
    cut_block(block, partial(column, comm=counting), partial(row, comm=counting))
    seen = take_steps(block, inputs(IMAGES, TOKENS, BLOCK_WIDTH), counting)
    advice = "Which of the six linear layers is still whole?"
    yield f"a rank holds 1/{comm.size} of all six weights", seen.numbers, "of the block's numbers", advice
    yield "every rank has one process's outputs", seen.outputs[0]
    yield "and its gradient of the inputs", seen.input_gradient
    yield TRAINED, seen.outputs[-1]
    text = "forward sends two allreduces of the tokens, one in attention and one in the MLP"
    yield text, seen.forward_bytes, "of the bytes sent in forward"


QUERY = "    attention.query = column(attention.query)\n"
cut_block = played(
    "cut_block",
    NOTEBOOK,
    play_block,
    [
        Edit(
            "each rank has all heads here, but only a part of each, and softmax of a part of a score isn't a part of "
            "its softmax. Leave `head_width` alone: then each rank has fewer heads, but whole ones.",
            (
                QUERY,
                f"    whole = attention.query.out_features\n{QUERY}"
                "    attention.head_width = attention.head_width * len(attention.query.weight) // whole\n",
            ),
        )
    ],
    unknown="look at the six layers in hint 2 again: which read whole tokens, and which read parts?",
    raised=if_shapes_clash(
        "a column-parallel layer reads whole tokens and returns a part of each; a row-parallel layer reads parts and "
        "returns whole tokens. So which comes first in the MLP and in attention? And are query, key and value all cut?"
    ),
)


def values(seed: int) -> torch.Tensor:
    """Return random values for all tokens: [IMAGES, TOKENS, WIDTH]."""
    return torch.randn(IMAGES, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def play_tokens(token_parallel: Callable, comm) -> Iterator[tuple]:
    """Run `enter` and `leave`, each with values and gradients that differ from rank to rank."""
    counting = CountingComm(comm)
    tokens = token_parallel(counting)
    mine = own(values(1), comm.rank, comm.size).requires_grad_()
    parts = values(200 + comm.rank).requires_grad_()
    sent = [counting.bytes_sent]
    entered = tokens.enter(mine)
    sent.append(counting.bytes_sent)
    yield "every rank gets all tokens from `enter`", entered
    left = tokens.leave(parts)
    sent.append(counting.bytes_sent)
    yield "`leave` adds up the ranks' parts and gives each rank its own tokens", left
    entered.backward(values(100 + comm.rank))
    sent.append(counting.bytes_sent)
    left.backward(own(values(2), comm.rank, comm.size))
    sent.append(counting.bytes_sent)
    yield "in backward, `enter` adds up the ranks' gradients of this rank's tokens", mine.grad
    yield "in backward, `leave` gives every rank the gradient of all tokens", parts.grad
    most = max(after - before for before, after in itertools.pairwise(sent))
    half = (comm.size - 1) * entered.nbytes // comm.size
    observed = f"one of them sends {most} bytes, but half an allreduce is {half}."
    yield "each sends half an allreduce, in forward and in backward", most, observed


GATHER = "self.gather = partial(lesson.allgather, comm, dim=1)"
SCATTER = "self.scatter_sums = partial(lesson.reduce_scatter, comm, dim=1)"
OWN = "chunk(comm.size, 1)[comm.rank].contiguous()"
ADD_UP = "what the ranks hold are parts of one sum. Cutting out this rank's tokens loses the others' parts. Add up with"
TokenParallel = played(
    "TokenParallel",
    NOTEBOOK,
    play_tokens,
    [
        Edit(
            f"{ADD_UP} `self.scatter_sums` in the backward of `enter`.",
            (GATHER, f"{GATHER}\n        self.own = lambda whole: whole.{OWN}"),
            ("backward=self.scatter_sums", "backward=self.own"),
        ),
        Edit(
            f"{ADD_UP} `self.scatter_sums` in the forward of `leave`.",
            (GATHER, f"{GATHER}\n        self.own = lambda whole: whole.{OWN}"),
            ("forward=self.scatter_sums", "forward=self.own"),
        ),
        Edit(
            "`enter` has this rank's tokens and needs all of them, so its forward is `self.gather`.",
            (SCATTER, f"{SCATTER}\n        self.gather, self.scatter_sums = self.scatter_sums, self.gather"),
        ),
    ],
    raised={
        "invalid gradient": (
            "a gradient has the shape of what it belongs to. So what `enter` makes larger, its backward makes smaller "
            "again, and `leave` the other way round."
        )
    },
)
