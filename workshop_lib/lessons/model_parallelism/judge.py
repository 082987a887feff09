"""Two exercises of 11_model_parallelism: linear layers cut by columns and by rows."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.functional import linear

from workshop_lib.judge import Exercise, Mistake, Property, close
from workshop_lib.lessons.model_parallelism import cut
from workshop_lib.lessons.model_parallelism.tensors import allgather, allreduce, both_ways
from workshop_lib.lessons.mpi_basics.counting import CountingComm

# IN and OUT divide by 2, 3 and 4 ranks.
ROWS = 30
IN = 12
OUT = 24
STEPS = 3
LR = 0.01
CLASHES = ("shapes cannot be multiplied", "must match the", "size mismatch", "Expected size for")


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


def take_steps(layer: nn.Module, x: torch.Tensor, counting: CountingComm | None = None) -> Cut:
    """Take STEPS steps of SGD, with half the sum of the squared outputs as the loss, and return what they did."""
    outputs = []
    gradient = np.empty(0)
    forward_bytes = 0
    backward_bytes = 0
    for step in range(STEPS):
        x = x.detach().requires_grad_()
        before = counting.bytes_sent if counting else 0
        output = layer(x)
        between = counting.bytes_sent if counting else 0
        outputs.append(output.detach().numpy().copy())
        layer.zero_grad()
        (output**2).sum().div(2).backward()
        if step == 0:
            gradient = np.zeros(x.shape) if x.grad is None else x.grad.numpy().copy()
            forward_bytes = between - before
            backward_bytes = (counting.bytes_sent if counting else 0) - between
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


def observe_column(comm, make: Callable) -> Cut:
    counting = CountingComm(comm)
    return steps_or_clash(lambda: make(small_linear(), counting), inputs(ROWS, IN), counting)


def observe_row(comm, make: Callable) -> Cut:
    counting = CountingComm(comm)
    mine = IN // comm.size
    x = inputs(ROWS, IN)[:, comm.rank * mine :][:, :mine]
    return steps_or_clash(lambda: make(small_linear(), counting), x, counting)


@functools.cache
def alone() -> Cut:
    """Take the same steps in one process."""
    return take_steps(small_linear(), inputs(ROWS, IN))


def _part(whole: np.ndarray, rank: int, size: int) -> np.ndarray:
    return np.split(whole, size, axis=-1)[rank]


def layer_properties(ranks: list[Cut], by_columns: bool) -> Iterator[Property]:
    """Yield what must hold for ColumnParallel (by columns) or RowParallel (by rows)."""
    size = len(ranks)
    right = alone()
    dim, cut_along = (0, "outputs") if by_columns else (1, "inputs")
    hint = f"PyTorch says: {ranks[0].clash}. `layer.weight` has the shape [outputs, inputs], and this layer cuts its "
    hint += f"{cut_along}, so take `shard(layer.weight, {dim}, comm)`."
    hint += (
        " The bias has a number per output, so it's cut, too."
        if by_columns
        else " The bias belongs to the outputs, which are whole."
    )
    yield Property("the shapes fit", not ranks[0].clash, hint)
    weight = IN * OUT // size
    share = weight + (OUT // size if by_columns else OUT)
    shares = (share,) if by_columns else (share, weight)  # a row-parallel layer may keep its bias elsewhere
    hint = f"rank 0 holds {ranks[0].numbers} numbers in its parameters, but {share} are its share. "
    hint += "Cut the weight with `shard`" + (", and the bias too." if by_columns else ", and keep one bias.")
    text = f"a rank holds 1/{size} of the weight"
    yield Property(text, all(rank.numbers in shares for rank in ranks), hint)
    first, last = ([rank.outputs[at] for rank in ranks] for at in (0, -1))
    expected = [
        [_part(right.outputs[at], r, size) if by_columns else right.outputs[at] for r in range(size)] for at in (0, -1)
    ]
    text = "rank r has the r-th part of one process's outputs" if by_columns else "every rank has one process's outputs"
    yield agree(text, first, expected[0])
    gradients = [rank.input_gradient for rank in ranks]
    whole = right.input_gradient
    text = "every rank has the gradient of the whole x" if by_columns else "rank r has the gradient of its part of x"
    expected_gradients = [whole if by_columns else _part(whole, r, size) for r in range(size)]
    yield agree(text, gradients, expected_gradients)
    yield agree(f"after {STEPS - 1} steps of training the outputs are still right", last, expected[1])
    whole_bytes = 8 * ROWS * (IN if by_columns else OUT)
    yield from _sent(ranks, (0, 1) if by_columns else (1, 0), whole_bytes)


def _sent(ranks: list[Cut], allreduces: tuple[int, int], whole_bytes: int) -> Iterator[Property]:
    """Yield what each rank must send in the forward and in the backward pass: this many allreduces of `whole_bytes`."""
    one = 2 * (len(ranks) - 1) / len(ranks) * whole_bytes
    for way, times in zip(("forward", "backward"), allreduces, strict=True):
        sent = max(getattr(rank, f"{way}_bytes") for rank in ranks)
        hint = f"it sends {sent} bytes in {way}, but {times * one:.0f} are enough."
        text = f"{way} sends {'one allreduce' if times else 'nothing'}"
        yield Property(text, close(sent, times * one), hint)


def agree(text: str, given: list[np.ndarray], expected: list[np.ndarray]) -> Property:
    """Return a property that holds if every rank has what is expected. If not, what they have tells mistakes apart."""
    return Property(text, all(close(a, b) for a, b in zip(given, expected, strict=True)), evidence=given)


def own(tensor: torch.Tensor, rank: int, size: int, dim: int = 1) -> torch.Tensor:
    """Return the rank's part of a tensor along `dim`."""
    return tensor.chunk(size, dim)[rank].contiguous()


def _unchanged(comm, tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _mean(comm, tensor: torch.Tensor) -> torch.Tensor:
    return allreduce(comm, tensor) / comm.size


def _column(forward: Callable, backward: Callable) -> Callable:
    """Make a wrong ColumnParallel from what it does in the forward and in the backward pass.

    forward(comm, x) gets the input, and backward(comm, gradient) the gradient that comes back to it.
    """

    class WrongColumns(cut.ColumnParallel):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = both_ways(x, forward=partial(forward, self.comm), backward=partial(backward, self.comm))
            return linear(x, self.weight, self.bias)

    return WrongColumns


class _RankZerosPart(cut.ColumnParallel):
    def __init__(self, layer, comm):
        super().__init__(layer, comm)
        firsts = (tensor.detach()[: OUT // comm.size].clone() for tensor in (layer.weight, layer.bias))
        self.weight, self.bias = map(nn.Parameter, firsts)


class _GathersOutputs(cut.ColumnParallel):
    def forward(self, x):
        back = partial(own, rank=self.comm.rank, size=self.comm.size, dim=-1)
        return both_ways(super().forward(x), forward=partial(allgather, self.comm, dim=-1), backward=back)


def _row(
    forward: Callable = allreduce, backward: Callable = _unchanged, bias_factor: Callable | None = None
) -> Callable:
    """Make a wrong RowParallel from what it does in the forward and in the backward pass.

    forward(comm, part) gets the rank's part of the sums, and backward(comm, gradient) the gradient of the result. The
    layer adds the bias afterwards. If bias_factor is given, each of the p ranks instead adds bias_factor(p) times the
    bias to its part of the sums.
    """

    class WrongRows(cut.RowParallel):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            summed = partial(both_ways, forward=partial(forward, self.comm), backward=partial(backward, self.comm))
            if bias_factor is None:
                return summed(linear(x, self.weight)) + self.bias
            return summed(linear(x, self.weight, bias_factor(self.comm.size) * self.bias))

    return WrongRows


ColumnParallel = Exercise(
    "ColumnParallel",
    observe_column,
    partial(layer_properties, by_columns=True),
    [
        Mistake(
            _column(_unchanged, _unchanged),
            "backward gives x only what came through this rank's own outputs. x went into the parts of all ranks, so "
            "its gradient is the sum over ranks: `backward=partial(allreduce, self.comm)`.",
        ),
        Mistake(
            _column(allreduce, allreduce),
            "x is already whole on every rank, so forward has nothing to add up: it would compute with p times x.",
        ),
        Mistake(
            _column(_unchanged, _mean), "the ranks' gradients are parts of one sum. Add them up, and don't divide."
        ),
        Mistake(_RankZerosPart, "every rank has rank 0's part. `shard(tensor, dim, comm)` takes this rank's own."),
        Mistake(
            _GathersOutputs,
            "keep the outputs in parts. The row-parallel layer that follows reads parts, so nobody has to gather them.",
        ),
    ],
)
RowParallel = Exercise(
    "RowParallel",
    observe_row,
    partial(layer_properties, by_columns=False),
    [
        Mistake(
            _row(forward=_unchanged),
            "each rank has only its own inputs' part of every sum. Add the parts up: "
            "`both_ways(part, forward=partial(allreduce, self.comm), backward=…)`.",
        ),
        Mistake(
            _row(backward=allreduce),
            "the gradient is p times too large. It arrives whole and equal on every rank, so backward has nothing to "
            "add up: `backward=same`.",
        ),
        Mistake(
            _row(forward=_mean), "these are parts of one sum, not p estimates of it. Add them up, and don't divide."
        ),
        Mistake(
            _row(bias_factor=lambda p: 1),
            "the bias is in it p times, once from every rank. Add it once, after the allreduce.",
        ),
        Mistake(
            _row(bias_factor=lambda p: 1 / p),
            "the outputs are right at first, but the bias learns p times too slowly: its gradient is divided by p too. "
            "Add the whole bias, after the allreduce.",
        ),
        Mistake(_row(bias_factor=lambda p: 0), "the bias is missing: add it after the allreduce."),
    ],
)
