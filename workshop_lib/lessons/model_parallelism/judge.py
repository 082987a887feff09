"""Two exercises of 11_model_parallelism: linear layers cut by columns and by rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from workshop_lib.judge import own_or_solution
from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.mpi_basics.counting import CountingComm

NOTEBOOK = "11_model_parallelism"
written = partial(own_or_solution, notebook=NOTEBOOK)
# IN and OUT divide by 2, 3 and 4 ranks.
ROWS = 30
IN = 12
OUT = 24
STEPS = 3
LR = 0.01
CLASHES = ("shapes cannot be multiplied", "must match the", "size mismatch", "Expected size for")
TRAINED = f"after {STEPS - 1} steps of training the outputs are still right"


@dataclass(frozen=True)
class Cut:
    """What a few steps with the learner's layer did on one rank."""

    numbers: int  # how many numbers the layer's parameters hold
    outputs: list[np.ndarray]  # one array per forward pass
    input_gradient: np.ndarray  # the gradient of x in the first step
    forward_bytes: int  # bytes sent in the first forward pass
    backward_bytes: int  # bytes sent in the first backward pass
    clash: str = ""  # PyTorch's message about shapes that don't fit; empty if they do


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


def steps_or_clash(make: Callable[[], nn.Module], x: torch.Tensor, counting: CountingComm) -> Cut:
    """Call take_steps with the layer that `make` returns. Shapes that do not fit stop all ranks, so that none waits."""
    try:
        return take_steps(make(), x, counting)
    except RuntimeError as error:
        if not any(words in str(error) for words in CLASHES):
            raise
        return Cut(0, [], np.empty(0), 0, 0, str(error).splitlines()[0])


def play_columns(column_parallel: Callable, comm) -> Iterator[tuple]:
    counting = CountingComm(comm)
    seen = steps_or_clash(lambda: column_parallel(small_linear(), counting), inputs(ROWS, IN), counting)
    advice = (
        "`layer.weight` has the shape [outputs, inputs], and this layer cuts its outputs, so take "
        "`shard(layer.weight, 0, comm)`. The bias has a number per output, so it's cut, too."
    )
    yield "the shapes fit", not seen.clash, f"PyTorch says: {seen.clash}.", advice
    advice = "Cut the weight with `shard`, and the bias too."
    yield f"a rank holds 1/{comm.size} of the weight", seen.numbers, "of the layer's numbers", advice
    yield "rank r has the r-th part of one process's outputs", seen.outputs[0]
    yield "every rank has the gradient of the whole x", seen.input_gradient
    yield TRAINED, seen.outputs[-1]
    one = 2 * (comm.size - 1) * 8 * ROWS * IN // comm.size
    observed = f"it sends {seen.forward_bytes} bytes in forward:"
    yield "forward sends nothing", seen.forward_bytes, observed, "0 are enough."
    observed = f"it sends {seen.backward_bytes} bytes in backward:"
    yield "backward sends one allreduce", seen.backward_bytes, observed, f"{one} are enough."


def play_rows(row_parallel: Callable, comm) -> Iterator[tuple]:
    counting = CountingComm(comm)
    x = own(inputs(ROWS, IN), comm.rank, comm.size)
    seen = steps_or_clash(lambda: row_parallel(small_linear(), counting), x, counting)
    advice = (
        "`layer.weight` has the shape [outputs, inputs], and this layer cuts its inputs, so take "
        "`shard(layer.weight, 1, comm)`. The bias belongs to the outputs, which are whole."
    )
    yield "the shapes fit", not seen.clash, f"PyTorch says: {seen.clash}.", advice
    weight = IN * OUT // comm.size
    share = weight + OUT
    observed = f"rank {comm.rank} holds {seen.numbers} numbers in its parameters, but {share} are its share."
    # A layer may keep its bias elsewhere.
    held = share if seen.numbers == weight else seen.numbers
    advice = "Cut the weight with `shard`, and keep one bias."
    yield f"a rank holds 1/{comm.size} of the weight", held, observed, advice
    yield "every rank has one process's outputs", seen.outputs[0]
    yield "rank r has the gradient of its part of x", seen.input_gradient
    yield TRAINED, seen.outputs[-1]
    one = 2 * (comm.size - 1) * 8 * ROWS * OUT // comm.size
    observed = f"it sends {seen.forward_bytes} bytes in forward:"
    yield "forward sends one allreduce", seen.forward_bytes, observed, f"{one} are enough."
    observed = f"it sends {seen.backward_bytes} bytes in backward:"
    yield "backward sends nothing", seen.backward_bytes, observed, "0 are enough."


def own(tensor: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """Return the rank's part of a tensor along its second dimension."""
    return tensor.chunk(size, 1)[rank].contiguous()


SUM = "partial(allreduce, self.comm)"
MEAN = "lambda tensor: allreduce(self.comm, tensor) / self.comm.size"
WEIGHT = "shard(layer.weight, 0, comm)"
BIAS = "shard(layer.bias, 0, comm)"
OUTPUTS = "linear(x, self.weight, self.bias)"
ColumnParallel = played(
    "ColumnParallel",
    NOTEBOOK,
    play_columns,
    [
        Edit(
            "backward gives x only what came through this rank's own outputs. x went into the parts of all ranks, so "
            "its gradient is the sum over ranks: `backward=partial(allreduce, self.comm)`.",
            (SUM, "same"),
        ),
        Edit(
            "x is already whole on every rank, so forward has nothing to add up: it would compute with p times x.",
            ("forward=same", f"forward={SUM}"),
        ),
        Edit("the ranks' gradients are parts of one sum. Add them up, and don't divide.", (SUM, MEAN)),
        Edit(
            "every rank has rank 0's part. `shard(tensor, dim, comm)` takes this rank's own.",
            (WEIGHT, "nn.Parameter(layer.weight.detach().chunk(comm.size)[0])"),
            (BIAS, "nn.Parameter(layer.bias.detach().chunk(comm.size)[0])"),
        ),
        Edit(
            "keep the outputs in parts. The row-parallel layer that follows reads parts, so nobody has to gather them.",
            (
                OUTPUTS,
                f"both_ways({OUTPUTS}, forward=partial(allgather, self.comm, dim=-1), "
                "backward=lambda whole: whole.chunk(self.comm.size, -1)[self.comm.rank])",
            ),
        ),
    ],
)

PART = "linear(x, self.weight)"
ADD_BIAS = " + self.bias"
RowParallel = played(
    "RowParallel",
    NOTEBOOK,
    play_rows,
    [
        Edit(
            "each rank has only its own inputs' part of every sum. Add the parts up: "
            "`both_ways(part, forward=partial(allreduce, self.comm), backward=…)`.",
            (SUM, "same"),
        ),
        Edit(
            "the gradient is p times too large. It arrives whole and equal on every rank, so backward has nothing to "
            "add up: `backward=same`.",
            ("backward=same", f"backward={SUM}"),
        ),
        Edit("these are parts of one sum, not p estimates of it. Add them up, and don't divide.", (SUM, MEAN)),
        Edit(
            "the bias is in it p times, once from every rank. Add it once, after the allreduce.",
            (PART, OUTPUTS),
            (ADD_BIAS, ""),
        ),
        Edit(
            "the outputs are right at first, but the bias learns p times too slowly: its gradient is divided by p too. "
            "Add the whole bias, after the allreduce.",
            (ADD_BIAS, ""),
            (PART, "linear(x, self.weight, self.bias / self.comm.size)"),
        ),
        Edit("the bias is missing: add it after the allreduce.", (ADD_BIAS, "")),
    ],
)
