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
from workshop_lib.lessons.pipelines.orders import MicroBatchPass, Order, Span
from workshop_lib.training.memory import SavedForBackward

MOST_MICRO_BATCHES = 1000


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


class ByHand(Stage):
    """A stage as the notebook's exercise asks for it. It takes the learner's place until the exercise is solved."""

    def forward(self, i: int) -> None:
        x = self.images[i] if self.first else self.receive_activations(i).requires_grad_()
        y = self.layers(x)
        if self.last:
            y = self.loss(y, i) / self.m
        else:
            self.send_activations(i, y)
        self.kept[i] = x, y

    def backward(self, i: int) -> None:
        x, y = self.kept.pop(i)
        y.backward(None if self.last else self.receive_gradient(i))
        if not self.first:
            self.send_gradient(i, x.grad)


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
