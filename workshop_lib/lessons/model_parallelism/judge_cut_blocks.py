"""Two exercises of 11_model_parallelism: a block cut among ranks, and tokens divided among ranks between its layers."""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.model_parallelism import cut
from workshop_lib.lessons.model_parallelism.judge import NOTEBOOK, TRAINED, inputs, own, steps_or_clash
from workshop_lib.lessons.mpi_basics.counting import CountingComm
from workshop_lib.models.vit import Block

# TOKENS divides by 2, 3 and 4 ranks.
IMAGES = 3
TOKENS = 12
WIDTH = 5
BLOCK_WIDTH = 16
HEADS = 4
BLOCK = IMAGES, TOKENS, BLOCK_WIDTH  # the shape of a block's inputs


def play_block(cut_block: Callable, comm) -> Iterator[tuple]:
    counting = CountingComm(comm)

    def make() -> nn.Module:
        torch.manual_seed(1)
        block = Block(BLOCK_WIDTH, HEADS).double()
        cut_block(block, partial(cut.ColumnParallel, comm=counting), partial(cut.RowParallel, comm=counting))
        return block

    seen = steps_or_clash(make, inputs(*BLOCK), counting)
    advice = (
        "A column-parallel layer reads whole tokens and returns a part of each; a row-parallel layer reads parts and "
        "returns whole tokens. So which comes first in the MLP and in attention? And are query, key and value all cut?"
    )
    yield "the shapes fit", not seen.clash, f"PyTorch says: {seen.clash}.", advice
    advice = "Which of the six linear layers is still whole?"
    yield f"a rank holds 1/{comm.size} of all six weights", seen.numbers, "of the block's numbers", advice
    yield "every rank has one process's outputs", seen.outputs[0]
    yield "and its gradient of the inputs", seen.input_gradient
    yield TRAINED, seen.outputs[-1]
    allreduces = seen.forward_bytes / (2 * (comm.size - 1) / comm.size * 8 * math.prod(BLOCK))
    observed = f"forward sends {seen.forward_bytes} bytes, {allreduces:.2g} allreduces."
    advice = "Attention needs one and the MLP one."
    yield "forward sends two allreduces of the tokens", seen.forward_bytes, observed, advice


QUERY = "    attention.query = column(attention.query)\n"
PARTS = "attention, mlp = block.attention, block.mlp\n"
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
        ),
        Edit(
            "the numbers of one head have been spread over all heads. Leave `by_head` alone: a rank's rows of `query` "
            "already are whole heads.",
            (
                PARTS,
                f"{PARTS}    by_head = lambda x: x.unflatten(2, (attention.head_width, -1)).permute(0, 3, 1, 2)\n"
                "    attention.by_head = by_head\n",
            ),
        ),
    ],
    unknown="look at the six layers in hint 2 again: which read whole tokens, and which read parts?",
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
    clash = ""
    try:
        entered.backward(values(100 + comm.rank))
        sent.append(counting.bytes_sent)
        left.backward(own(values(2), comm.rank, comm.size))
        sent.append(counting.bytes_sent)
    except RuntimeError as error:
        if "invalid gradient" not in str(error):
            raise
        clash = str(error).splitlines()[0]
    advice = (
        "A gradient has the shape of what it belongs to. So what `enter` makes larger, its backward makes smaller "
        "again, and `leave` the other way round."
    )
    yield "gradients have the shapes of their tensors", not clash, f"PyTorch says: {clash}.", advice
    yield "in backward, `enter` adds up the ranks' gradients of this rank's tokens", mine.grad
    yield "in backward, `leave` gives every rank the gradient of all tokens", parts.grad
    most = max(after - before for before, after in itertools.pairwise(sent))
    half = (comm.size - 1) * entered.nbytes // comm.size
    observed = f"one of them sends {most} bytes, but half an allreduce is {half}."
    yield "each sends half an allreduce, in forward and in backward", most, observed


GATHER = "self.gather = partial(allgather, comm, dim=1)"
SCATTER = "self.scatter_sums = partial(reduce_scatter, comm, dim=1)"
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
            "An allreduce gives every rank all sums. `self.scatter_sums` gives it its own.",
            (SCATTER, f"self.scatter_sums = lambda parts: allreduce(comm, parts).{OWN}"),
        ),
        Edit(
            "`enter` has this rank's tokens and needs all of them, so its forward is `self.gather`.",
            (SCATTER, f"{SCATTER}\n        self.gather, self.scatter_sums = self.scatter_sums, self.gather"),
        ),
        Edit(
            "these are parts of a sum. Add them up, and don't divide.",
            (SCATTER, "self.scatter_sums = lambda parts: reduce_scatter(comm, parts, dim=1) / comm.size"),
        ),
    ],
)
