"""A network in stages, on the ranks of a pipeline: what a stage sends and receives, and a step in a given order."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.errors import InputError
from workshop_lib.lessons.pipelines.orders import Operation, Order, Span
from workshop_lib.training.memory import SavedForBackward

MOST_MICRO_BATCHES = 1000


class Step(NamedTuple):
    """What one step was like on this rank. `saved_bytes` is 0 unless it was asked for."""

    spans: list[Span]  # in seconds since all ranks began
    loss: float  # the mean over the batch, on the rank of the last stage; 0 elsewhere
    most_kept: int  # micro-batches, times chunks
    saved_bytes: int  # the most that autograd kept for backward, without parameters


class Stage:
    """Some layers of a network that follow one another: stage `number` of `stages`, on rank `number % comm.size`.

    A subclass writes forward(i) and backward(i), for micro-batch i. Sends never wait, and receives do.
    """

    def __init__(self, layers: nn.Module, number: int, stages: int, comm, shapes: Sequence[torch.Tensor]):
        """shapes: of each stage, what it makes of one image."""
        self.layers, self.number, self.comm, self.shapes = layers, number, comm, shapes
        self.first, self.last = number == 0, number == stages - 1
        self.kept: dict[int, Any] = {}  # by micro-batch: what its backward will need
        self.waited_s = 0.0
        self.blocking = False  # whether a send waits until its receiver is ready
        self._under_way: list[tuple] = []

    def forward(self, i: int) -> None:
        raise NotImplementedError

    def backward(self, i: int) -> None:
        raise NotImplementedError

    def load(self, images: torch.Tensor, labels: torch.Tensor, micro_batches: int) -> None:
        """The batch of the next step. Every rank has it; only the first stage reads the images, the last the labels."""
        if len(images) % micro_batches:
            raise InputError(f"{len(images)} images don't divide into {micro_batches} micro-batches of equal size.")
        self.images, self.labels = images.chunk(micro_batches), labels.chunk(micro_batches)
        self.m = micro_batches
        self.losses: list[float] = []  # of the micro-batches, on the last stage
        self.kept.clear()

    def loss(self, logits: torch.Tensor, i: int) -> torch.Tensor:
        """The mean loss of micro-batch i."""
        loss = cross_entropy(logits, self.labels[i])
        self.losses.append(loss.item())
        return loss

    def receive_activations(self, i: int) -> torch.Tensor:
        """What the stage before this one made of micro-batch i."""
        return self._receive(self.number - 1, self.number, i, self.number - 1)

    def send_activations(self, i: int, activations: torch.Tensor) -> None:
        """Hand micro-batch i on to the next stage."""
        self._send(activations, self.number + 1, self.number + 1, i)

    def receive_gradient(self, i: int) -> torch.Tensor:
        """The gradient of the loss by what this stage made of micro-batch i, from the next stage."""
        return self._receive(self.number + 1, -self.number - 1, i, self.number)

    def send_gradient(self, i: int, gradient: torch.Tensor | None) -> None:
        """Hand the gradient by this stage's input back to the stage before."""
        self._send(gradient, self.number - 1, -self.number, i)

    def _send(self, tensor: torch.Tensor | None, to_stage: int, cut: int, i: int) -> None:
        if not 0 <= to_stage < len(self.shapes):
            raise InputError(f"stage {self.number} can't send to stage {to_stage}: there is no such stage.")
        if tensor is None:
            raise InputError(f"stage {self.number} has nothing to send for micro-batch {i}: it's None.")
        array, dest = _array(tensor.detach()), to_stage % self.comm.size
        send = self.comm.Issend if self.blocking else self.comm.Isend
        self._under_way.append((send(array, dest, tag(cut, i)), array))
        if self.blocking:
            self.finish()

    def _receive(self, from_stage: int, cut: int, i: int, shaped_as: int) -> torch.Tensor:
        if not 0 <= from_stage < len(self.shapes):
            raise InputError(f"stage {self.number} can't receive from stage {from_stage}: there is no such stage.")
        start_s, like = time.perf_counter(), self.shapes[shaped_as]
        order = torch.channels_last if like.dim() == 4 else torch.contiguous_format
        tensor = torch.empty(len(self.labels[i]), *like.shape[1:], dtype=like.dtype, memory_format=order)
        self.comm.Recv(_array(tensor), from_stage % self.comm.size, tag(cut, i))
        self.waited_s += time.perf_counter() - start_s
        return tensor

    def finish(self) -> None:
        """Wait until everything that was sent has arrived."""
        for request, _ in self._under_way:  # with its array, which MPI reads until then
            request.Wait()
        self._under_way.clear()


class ByHand(Stage):
    """What the notebook's exercise asks for."""

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
    """MPI's tag for a message: `cut` is the stage that receives activations, or minus the one that sends a gradient."""
    return 2 * (abs(cut) * MOST_MICRO_BATCHES + i) + (cut < 0)


def _array(tensor: torch.Tensor):
    """Its values as an array in the order in which they lie in memory: images have their channels last."""
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).contiguous().numpy()


def split(model: nn.Sequential, counts: Iterable[int]) -> list[nn.Sequential]:
    """The model's layers in stages, `counts` of them in each. Raises InputError unless each is in one stage."""
    counts = list(counts)
    if sum(counts) != len(model) or min(counts) < 1:
        raise InputError(f"stages of {counts} layers don't make up a network of {len(model)}.")
    ends = [sum(counts[: at + 1]) for at in range(len(counts))]
    return [cast(nn.Sequential, model[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def stages_of_rank(make: Callable, parts: Sequence[nn.Module], comm, image_shape=(1, 28, 28)) -> list[Stage]:
    """This rank's stages, made with `make` (a subclass of Stage): part s of the network is on rank s % size.

    The network is small, so every rank has all parts. It only asks them how large the messages are.
    """
    shapes, values = [], torch.zeros(1, *image_shape, dtype=next(parts[0].parameters()).dtype)
    with torch.no_grad():
        for part in parts:
            values = part(values)
            shapes.append(values)
    mine = range(comm.rank, len(parts), comm.size)
    return [make(parts[number], number, len(parts), comm, shapes) for number in mine]


def step(stages: Sequence[Stage], order: Order, comm, count_bytes: bool = False) -> Step:
    """Forward and backward of all micro-batches in this rank's order. All ranks call it together.

    The gradients are left in the parameters. Time spent in a receive doesn't count as computing.
    """
    saved, spans, most_kept = SavedForBackward(stage.layers for stage in stages), [], 0
    comm.Barrier()
    zero_s = time.perf_counter()
    with saved if count_bytes else nullcontext():
        for kind, i, chunk in (Operation(*each) for each in order):
            stage = stages[chunk]
            start_s, waited_s = time.perf_counter() - zero_s, stage.waited_s
            (stage.forward if kind == "F" else stage.backward)(i)
            start_s += stage.waited_s - waited_s
            spans.append(Span(kind, i, chunk, start_s, time.perf_counter() - zero_s))
            most_kept = max(most_kept, sum(len(each.kept) for each in stages))
    for stage in stages:
        stage.finish()
    losses = [loss for stage in stages for loss in stage.losses]
    return Step(spans, sum(losses) / max(1, len(losses)), most_kept, saved.most_bytes)


def layer_seconds(model: nn.Sequential, images: torch.Tensor, repeats: int = 5) -> list[float]:
    """How long forward and backward of each layer take together, with these images: the fastest of some tries."""
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
