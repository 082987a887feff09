"""Train a network in stages on the ranks of a pipeline: a stage's messages, and a step in a given order.

In 11b_pipelines the learner's stage is a subclass of `Stage`, and `step` runs it with the learner's schedules.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.errors import InputError
from workshop_lib.machine.emulation import session

from lessons.fitting_more.saved import SavedForBackward
from lessons.pipelines.orders import MicroBatchPass, Order, Span

MOST_MICRO_BATCHES = 1000
REPEATS = 5


class PipelineStep(NamedTuple):
    """What one step did on this rank."""

    spans: list[Span]  # in seconds since all ranks began the step
    loss: float  # mean over the batch, on the rank with the last stage; 0 elsewhere
    most_kept: int  # the most micro-batches (times chunks) kept at once
    saved_bytes: int  # peak bytes kept for the backward pass, without parameters; 0 unless count_bytes is set


class Stage:
    """Consecutive layers of a network: stage `number` of `stages`, on rank `number % comm.size`.

    A subclass defines forward(i) and backward(i) for micro-batch i. Receives wait for their message. Sends don't wait
    for their receiver, unless `blocking` is set. Both raise InputError if there is no stage on the other side.
    """

    def __init__(self, layers: nn.Module, number: int, stages: int, comm, shapes: Sequence[torch.Tensor]):
        """shapes: each stage's output for one image, which says what shape and type its messages have."""
        self.layers = layers
        self.number = number
        self.comm = comm
        self.shapes = shapes
        self.first = number == 0
        self.last = number == stages - 1
        self.kept: dict[int, Any] = {}  # what the backward of each micro-batch will need
        self.waited_s = 0.0
        self.blocking = False  # whether a send waits until its receiver is ready
        self._under_way: list[tuple] = []

    def forward(self, i: int) -> None:
        raise NotImplementedError

    def backward(self, i: int) -> None:
        raise NotImplementedError

    def load(self, images: torch.Tensor, labels: torch.Tensor, micro_batches: int) -> None:
        """Set the batch of the next step, the same on every rank: images [n, …] and labels [n].

        Only the first stage uses the images, and only the last one the labels. Raises InputError unless n is a multiple
        of `micro_batches`.
        """
        if len(images) % micro_batches:
            raise InputError(f"{len(images)} images don't divide into {micro_batches} micro-batches of equal size.")
        self.images = images.chunk(micro_batches)
        self.labels = labels.chunk(micro_batches)
        self.m = micro_batches
        self.losses: list[float] = []  # one per micro-batch on the last stage, none elsewhere
        self.kept.clear()

    def loss(self, logits: torch.Tensor, i: int) -> torch.Tensor:
        """The mean loss of micro-batch i, from the logits [samples, classes] of the last stage."""
        loss = cross_entropy(logits, self.labels[i])
        self.losses.append(loss.item())
        return loss

    def receive_activations(self, i: int) -> torch.Tensor:
        """Receive the output of the previous stage for micro-batch i."""
        return self._receive(self.number - 1, self.number, i, self.number - 1)

    def send_activations(self, i: int, activations: torch.Tensor) -> None:
        """Send this stage's output for micro-batch i to the next stage."""
        self._send(activations, self.number + 1, self.number + 1, i)

    def receive_gradient(self, i: int) -> torch.Tensor:
        """Receive, from the next stage, the gradient of the loss with respect to this stage's output."""
        return self._receive(self.number + 1, -self.number - 1, i, self.number)

    def send_gradient(self, i: int, gradient: torch.Tensor | None) -> None:
        """Send the gradient of the loss with respect to this stage's input to the previous stage."""
        self._send(gradient, self.number - 1, -self.number, i)

    def _send(self, tensor: torch.Tensor | None, to_stage: int, cut: int, i: int) -> None:
        if not 0 <= to_stage < len(self.shapes):
            raise InputError(f"stage {self.number} can't send to stage {to_stage}: there is no such stage.")
        if tensor is None:
            raise InputError(f"stage {self.number} has nothing to send for micro-batch {i}: it's None.")
        array = _array(tensor.detach())
        dest = to_stage % self.comm.size
        send = self.comm.Issend if self.blocking else self.comm.Isend
        self._under_way.append((send(array, dest, tag(cut, i)), array))
        if self.blocking:
            self.finish()

    def _receive(self, from_stage: int, cut: int, i: int, shaped_as: int) -> torch.Tensor:
        if not 0 <= from_stage < len(self.shapes):
            raise InputError(f"stage {self.number} can't receive from stage {from_stage}: there is no such stage.")
        start_s = time.perf_counter()
        like = self.shapes[shaped_as]
        order = torch.channels_last if like.dim() == 4 else torch.contiguous_format
        tensor = torch.empty(len(self.labels[i]), *like.shape[1:], dtype=like.dtype, memory_format=order)
        self.comm.Recv(_array(tensor), from_stage % self.comm.size, tag(cut, i))
        self.waited_s += time.perf_counter() - start_s
        return tensor

    def finish(self) -> None:
        """Wait until all of this stage's sends have completed."""
        for request, _ in self._under_way:  # the list also keeps each array alive, because MPI reads it until then
            request.Wait()
        self._under_way.clear()


def tag(cut: int, i: int) -> int:
    """The MPI tag of a message of micro-batch i.

    cut: the number of the stage that receives activations, or minus the number of the stage that sends a gradient.
    """
    return 2 * (abs(cut) * MOST_MICRO_BATCHES + i) + (cut < 0)


def _array(tensor: torch.Tensor):
    """The tensor's values as an array in the order of memory, where images [n, c, h, w] have their channels last."""
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).contiguous().numpy()


def split(model: nn.Sequential, counts: Iterable[int]) -> list[nn.Sequential]:
    """Cut the model into stages with `counts` layers each.

    Raises InputError unless the counts add up to the number of layers and each is at least 1.
    """
    counts = list(counts)
    if sum(counts) != len(model) or min(counts) < 1:
        raise InputError(f"stages of {counts} layers don't make up a network of {len(model)}.")
    ends = [sum(counts[: at + 1]) for at in range(len(counts))]
    return [cast(nn.Sequential, model[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def stages_of_rank(make: Callable, parts: Sequence[nn.Module], comm, image_shape=(1, 28, 28)) -> list[Stage]:
    """This rank's stages, created with `make` (a subclass of Stage). Part s of the network is on rank s % size.

    The network is small, so every rank has all parts, but runs the other ranks' parts only once, on a blank image of
    `image_shape`, to find out how large the messages are.
    """
    shapes = []
    values = torch.zeros(1, *image_shape, dtype=next(parts[0].parameters()).dtype)
    with torch.no_grad():
        for part in parts:
            values = part(values)
            shapes.append(values)
    mine = range(comm.rank, len(parts), comm.size)
    return [make(parts[number], number, len(parts), comm, shapes) for number in mine]


def step(stages: Sequence[Stage], order: Order, comm, count_bytes: bool = False) -> PipelineStep:
    """Run the forward and backward of all micro-batches in this rank's order.

    Every rank must call it, since it begins with a barrier. The gradients are left in the parameters. Time spent in a
    receive doesn't count as computing. count_bytes: whether to measure what autograd keeps for backward.
    """
    saved = SavedForBackward(stage.layers for stage in stages)
    spans = []
    most_kept = 0
    comm.Barrier()
    zero_s = time.perf_counter()
    with saved if count_bytes else nullcontext():
        for kind, i, chunk in (MicroBatchPass(*each) for each in order):
            stage = stages[chunk]
            start_s = time.perf_counter() - zero_s
            waited_s = stage.waited_s
            (stage.forward if kind == "F" else stage.backward)(i)
            start_s += stage.waited_s - waited_s
            spans.append(Span(kind, i, chunk, start_s, time.perf_counter() - zero_s))
            most_kept = max(most_kept, sum(len(each.kept) for each in stages))
    for stage in stages:
        stage.finish()
    losses = [loss for stage in stages for loss in stage.losses]
    return PipelineStep(spans, sum(losses) / max(1, len(losses)), most_kept, saved.most_bytes)


def steps(
    make: Callable,
    parts: Sequence[nn.Module],
    schedule: Callable,
    micro_batches: int,
    batch: tuple[torch.Tensor, torch.Tensor],
    comm,
    count_bytes: bool = False,
) -> tuple[list[Stage], list[PipelineStep]]:
    """This rank's stages after five steps with the same batch, and what each step did, without one that warms up.

    If times are emulated, one step is enough, because all are alike. parts: the stages of the network; the gradients in
    them are those of the last step. batch: images and labels. Every rank must call it.
    """
    stages = stages_of_rank(make, parts, comm)
    order = schedule(comm.rank, comm.size, micro_batches)
    taken = []
    emulated = session.CURRENT.emulation is not None
    for _ in range(1 if emulated else 1 + REPEATS):
        for stage in stages:
            stage.layers.zero_grad()
            stage.load(*batch, micro_batches)
        taken.append(step(stages, order, comm, count_bytes))
    return stages, taken if emulated else taken[1:]


def sent(
    make: Callable,
    parts: Sequence[nn.Module],
    schedule: Callable,
    micro_batches: int,
    batch: tuple[torch.Tensor, torch.Tensor],
    comm,
) -> dict[str, int]:
    """How many messages and bytes this rank sends in a step. Every rank must call it."""
    from workshop_lib.training.collectives.counting import CountingComm  # starts MPI, which a notebook must not

    counting = CountingComm(comm)
    stages = stages_of_rank(make, parts, counting)
    for stage in stages:
        stage.load(*batch, micro_batches)
    step(stages, schedule(comm.rank, comm.size, micro_batches), comm)
    return {"messages": counting.messages_sent, "bytes": counting.bytes_sent}


def difference(layers: nn.Module, whole: nn.Module) -> float:
    """How far the gradients of these layers are from those in the whole network, as a share of the largest."""
    names = dict(whole.named_parameters())
    right = torch.cat([names[name].grad.flatten() for name, _ in layers.named_parameters()])  # type: ignore[union-attr]
    ours = torch.cat([p.grad.flatten() for p in layers.parameters()])  # type: ignore[union-attr]
    return float((ours - right).abs().max() / right.abs().max())


def vgg() -> nn.Sequential:
    """Three times two convolutions and a pool, then a linear layer; the same weights wherever it's built."""
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    before = 1
    for channels in (8, 16, 32):
        for _ in range(2):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(9 * 32, 10))


def layer_seconds(model: nn.Sequential, images: torch.Tensor, repeats: int = 5) -> list[float]:
    """Seconds that each layer takes for forward and backward together, with these images: the fastest of `repeats`."""
    fastest = [float("inf")] * len(model)
    for _ in range(repeats):
        x = images.clone()
        for at, layer in enumerate(model):
            x = x.detach().requires_grad_(at > 0)
            start_s = time.perf_counter()
            y = layer(x)
            if y.requires_grad:
                y.backward(torch.ones_like(y))
            fastest[at] = min(fastest[at], time.perf_counter() - start_s)
            x = y
    return fastest
