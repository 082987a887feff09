"""What 06_zero_and_fsdp does around a learner's classes: flat arrays that ranks divide, and runs that count bytes.

Parameters are views of flat arrays, which the ranks divide into equal shards. Everything here runs on the ranks.
`train` and `train_fsdp` are called on all of them, and block.
"""

import functools
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, pad

from workshop_lib.machine import emulation, world
from workshop_lib.training import KINDS, rendezvous
from workshop_lib.training.collectives import ring
from workshop_lib.training.collectives.counting import CountingComm
from workshop_lib.training.collectives.traffic import Traffic
from workshop_lib.training.data import mnist
from workshop_lib.training.memory import storage_bytes, tensors
from workshop_lib.training.models import torch_cnn

SAMPLES = 64  # samples per rank and step
STEPS = 3


def join() -> MPI.Comm:
    """Join PyTorch's process group, which FSDP needs, and return MPI's communicator. All ranks call it."""
    torch.set_num_threads(1)
    # PyTorch warns that on CPUs, ranks with equal seeds draw equal shards of a DTensor. So 06c seeds ranks differently.
    warnings.filterwarnings("ignore", message="DTensor random operators")
    rendezvous.join_process_group(world.detect(), torch.device("cpu"))
    return MPI.COMM_WORLD


def perceptron(width: int = 1024, hidden: int = 3) -> nn.Sequential:
    """784 inputs, hidden layers of this width, 12 outputs; the same weights wherever it is built.

    Twelve outputs, two of which no label names, divide evenly by 2, 3, 4 and 6 ranks.
    """
    torch.manual_seed(1)
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(784, width), nn.ReLU()]
    for _ in range(hidden - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 12))


def batch(step: int = 0, rank: int = 0, ranks: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """The images of MNIST that a rank trains on in a step, 64 of them, and their labels."""
    images, labels = global_batch(step, ranks)
    return images[rank::ranks], labels[rank::ranks]


def global_batch(step: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The images of all ranks in a step, and their labels."""
    split = mnist.load("train")
    together = slice(step * SAMPLES * ranks, (step + 1) * SAMPLES * ranks)
    return torch_cnn.normalize(torch.tensor(split.images[together])), torch.tensor(split.labels[together]).long()


def adam(parameters: Iterable) -> torch.optim.Optimizer:
    return torch.optim.Adam(list(parameters), lr=1e-3)


def flat_weights(parameters: Sequence[nn.Parameter], ranks: int) -> torch.Tensor:
    """Copy the parameters into one flat array, padded with zeros to a multiple of `ranks`; they become views of it."""
    flat = torch.cat([p.detach().flatten() for p in parameters])
    filled = pad(flat, (0, -len(flat) % ranks))
    for p, piece in zip(parameters, filled[: len(flat)].split([p.numel() for p in parameters]), strict=True):
        p.data = piece.view_as(p)
    return filled


def flat_gradient(parameters: Sequence[nn.Parameter], ranks: int) -> torch.Tensor:
    """The parameters' gradients in a new flat array with the layout of `flat_weights`; a missing gradient is zeros."""
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    return pad(flat, (0, -len(flat) % ranks))


def free(flat: torch.Tensor) -> None:
    """Free the memory of a flat array. `fill` brings it back, also for the views that autograd keeps for backward."""
    flat.untyped_storage().resize_(0)


@torch.no_grad()
def fill(flat: torch.Tensor, values: torch.Tensor | np.ndarray) -> None:
    """Give a freed array its memory back, with these values."""
    flat.untyped_storage().resize_(flat.nbytes)
    flat.copy_(torch.as_tensor(values))


class CountingAllgathers(CountingComm):
    """A CountingComm that has MPI's Allgather, too, built as a ring of counted messages."""

    def Allgather(self, part, whole) -> None:
        """Fill the array `whole` with the parts of all ranks. MPI.IN_PLACE stands for the own part of `whole`."""
        array = np.asarray(whole).reshape(-1)
        if part is not MPI.IN_PLACE:
            array[ring.part(len(array), self.rank, self.size)] = np.asarray(part).reshape(-1)
        ring.allgather(self, array)


class ReducedInBackward:
    """A model whose gradients are divided among the ranks during the backward pass. A subclass defines `reduce`.

    reduce(p) is called once the backward pass has finished the gradient of parameter p, and leaves this rank's part of
    the mean gradient in the shard's `.grad`.
    """

    reduce: Callable

    def __init__(self, model: nn.Module, comm, make_optimizer: Callable):
        self.comm = comm
        self.weights: dict[nn.Parameter, torch.Tensor] = {}  # a flat array for each parameter, which is a view of it
        self.shards: dict[nn.Parameter, nn.Parameter] = {}  # this rank's part of each flat array
        for p in model.parameters():
            flat = flat_weights([p], comm.size)
            self.weights[p] = flat
            self.shards[p] = nn.Parameter(flat[ring.part(len(flat), comm.rank, comm.size)])
            p.register_post_accumulate_grad_hook(self.reduce)
        self.optimizer = make_optimizer(self.shards.values())

    def step(self) -> None:
        self.optimizer.step()
        for flat in self.weights.values():
            ring.allgather(self.comm, flat.numpy())


class GatheredByLayer:
    """A model whose weights are in memory only while their layer computes. A subclass defines three methods.

    watch(layer) adds hooks to a layer, which call the others. gather(layer) brings the layer's whole weights into
    memory, and drop(layer) frees them. A layer is any module that has parameters of its own. Each of its parameters
    needs a gradient in every backward pass.
    """

    watch: Callable
    gather: Callable
    drop: Callable

    def __init__(self, model: nn.Module, comm, make_optimizer: Callable):
        # Images need no gradient, so PyTorch warns that a hook of the first layer sees no gradient of its inputs.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        self.comm = comm
        self.parameters: dict[nn.Module, list[nn.Parameter]] = {}  # by layer, in the order of the model
        self.weights: dict[nn.Module, torch.Tensor] = {}  # a flat array for each layer, in memory while it computes
        self.shards: dict[nn.Module, nn.Parameter] = {}  # this rank's part of each flat array
        for layer in model.modules():
            parameters = list(layer.parameters(recurse=False))
            if parameters:
                flat = flat_weights(parameters, comm.size)
                self.parameters[layer] = parameters
                self.weights[layer] = flat
                self.shards[layer] = nn.Parameter(flat[ring.part(len(flat), comm.rank, comm.size)].clone())
                free(flat)
                self.watch(layer)
        self.optimizer = make_optimizer(self.shards.values())

    def finish(self, layer: nn.Module) -> None:
        """Reduce and drop a layer if its backward pass is over. Called whenever a gradient of it is complete."""
        if all(p.grad is not None for p in self.parameters[layer]):
            self.reduce(layer)
            self.drop(layer)

    def reduce(self, layer: nn.Module) -> None:
        """Add the mean gradient to the shard's, as in stage 2, and free the layer's own gradients."""
        gradient = flat_gradient(self.parameters[layer], self.comm.size)
        mean = torch.from_numpy(ring.reduce_scatter(self.comm, gradient.numpy()) / self.comm.size)
        before = self.shards[layer].grad
        self.shards[layer].grad = mean if before is None else before + mean
        for p in self.parameters[layer]:
            p.grad = None

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


class LayerSpan(NamedTuple):
    """What one call of `gather`, `reduce` or `drop` did on this rank."""

    call: str
    layer: int  # its place in the model, from 0
    start_s: float  # since the recording began
    end_s: float
    alive_bytes: list[int]  # of each layer's weights, beside the shards, when the call was over


class LayerRecorder:
    """Records the calls of gather, reduce and drop of a GatheredByLayer, and which weights are in memory."""

    def __init__(self, zero: GatheredByLayer):
        self.zero = zero
        self.layers = list(zero.weights)
        self.clear()
        for name in ("gather", "reduce", "drop"):
            setattr(zero, name, functools.partial(self.recorded, name, getattr(zero, name)))

    def clear(self) -> None:
        """Begin a new recording."""
        self.spans: list[LayerSpan] = []
        self.began_s = time.perf_counter()

    def recorded(self, name: str, call: Callable, layer: nn.Module) -> None:
        start_s = time.perf_counter() - self.began_s
        call(layer)
        end_s = time.perf_counter() - self.began_s
        alive_bytes = [storage_bytes(parameters) for parameters in self.zero.parameters.values()]
        self.spans.append(LayerSpan(name, self.layers.index(layer), start_s, end_s, alive_bytes))


def live_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of a model's states on this rank, by KINDS.

    If the optimizer steps on shards, the shards and their gradients count, too. Memory that a shard and a parameter
    have in common counts once.
    """
    everything = [*model.parameters(), *(p for group in optimizer.param_groups for p in group["params"])]
    states = [everything, [p.grad for p in everything], list(optimizer.state.values())]
    return dict(zip(KINDS, map(storage_bytes, map(tensors, states)), strict=True))


@dataclass
class TrainingCost:
    """What training cost one rank, per step, and how far its weights are from those of one process."""

    parameters: int
    held_bytes: dict[str, int]  # by KINDS, between the backward pass and the step
    peak_bytes: int  # the most that it held of these at any time
    distance: float  # as a fraction of the weights' norm
    sent_bytes: float  # by this rank; where PyTorch sends, as many as in a ring
    calls: dict[str, int] = field(default_factory=dict)  # of PyTorch's collectives, by name
    spans: list[LayerSpan] = field(default_factory=list)  # what stage 3 did in the last step

    @property
    def sent(self) -> float:
        """Bytes sent per step, as a multiple of n, the bytes of all weights."""
        return self.sent_bytes / (4 * self.parameters)

    def __repr__(self) -> str:
        held = {kind: size / self.parameters for kind, size in self.held_bytes.items()}
        parts = ", ".join(f"{kind} {size:.2f}" for kind, size in held.items())
        most = self.peak_bytes / self.parameters
        lines = [f"{sum(held.values()):.2f} bytes per parameter: {parts}; up to {most:.2f} during a step"]
        calls = " and ".join(f"{calls} {name}s" for name, calls in self.calls.items())
        lines.append(f"{self.sent:.2f} n bytes sent per step{f', in {calls}' if calls else ''}")
        return "\n".join([*lines, f"weights differ by {self.distance:.3%} from those of one process"])


class PeakMemory:
    """Measures a model's states on this rank wherever they are largest, and keeps the largest size.

    That is after each layer's forward pass, and whenever a gradient has just become complete. Create it before the
    class or FSDP that it measures adds its own hooks to the parameters.
    """

    def __init__(self, model: nn.Sequential):
        self.model = model
        self.optimizer: torch.optim.Optimizer | None = None
        self.most_bytes = 0
        self.watched: set[nn.Parameter] = set()
        for layer in model:
            self.watch(layer)
            layer.register_forward_hook(self.watch, prepend=True)

    def watch(self, layer: nn.Module, *_) -> None:
        """Measure now, and whenever a gradient of this layer is complete. FSDP's whole weights are new parameters."""
        for p in set(layer.parameters()) - self.watched:
            p.register_post_accumulate_grad_hook(self.measure)
            self.watched.add(p)
        self.measure()

    def measure(self, *_) -> None:
        if self.optimizer is not None:
            self.most_bytes = max(self.most_bytes, sum(live_bytes(self.model, self.optimizer).values()))


def train(make: Callable, micro_batches: int = 1, steps: int = STEPS) -> TrainingCost:
    """Train the perceptron with what `make(model, comm, make_optimizer)` returns."""
    counting = CountingAllgathers(MPI.COMM_WORLD)
    traffic = Traffic()
    model = perceptron()
    peak = PeakMemory(model)
    zero = make(model, counting, adam)
    peak.optimizer = zero.optimizer
    recorder = LayerRecorder(zero) if isinstance(zero, GatheredByLayer) else None
    held: dict[str, int] = {}
    for step in range(steps):
        model.zero_grad()
        zero.optimizer.zero_grad()
        images, labels = batch(step, counting.rank, counting.size)
        if recorder:
            recorder.clear()
        with traffic:
            for some, their_labels in zip(images.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
                (cross_entropy(model(some), their_labels) / micro_batches).backward()
        held = live_bytes(model, zero.optimizer)
        with traffic:
            zero.step()
    sent_bytes = (counting.bytes_sent + traffic.sharded_bytes_sent) / steps
    spans = list(recorder.spans) if recorder else []
    if isinstance(zero, GatheredByLayer):
        for layer in zero.weights:
            zero.gather(layer)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return TrainingCost(len(weights), held, peak.most_bytes, _distance(weights, steps), sent_bytes, spans=spans)


def with_fsdp(model: nn.Sequential, **options) -> nn.Sequential:
    """Make each layer of the perceptron a unit of FSDP, in place, and return the model."""
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def train_fsdp(model: nn.Sequential, steps: int = STEPS) -> TrainingCost:
    """Train a perceptron to which `fully_shard` has been applied."""
    comm = MPI.COMM_WORLD
    optimizer = adam(model.parameters())
    peak = PeakMemory(model)
    peak.optimizer = optimizer
    held: dict[str, int] = {}
    for step in range(steps):
        images, labels = batch(step, comm.rank, comm.size)
        optimizer.zero_grad()
        traffic = Traffic()  # of the last step, in the end
        with traffic:
            cross_entropy(model(images).float(), labels).backward()  # with bf16, the loss is still computed in fp32
        held = live_bytes(model, optimizer)
        optimizer.step()
    weights = torch.cat([cast(DTensor, p).full_tensor().detach().flatten() for p in model.parameters()])
    distance = _distance(weights, steps)
    sent_bytes = traffic.sharded_bytes_sent
    return TrainingCost(len(weights), held, peak.most_bytes, distance, sent_bytes, dict(traffic.calls))


def _distance(weights: torch.Tensor, steps: int) -> float:
    """How far these weights are from those of one process that trains with the global batch."""
    comm = MPI.COMM_WORLD
    alone = comm.bcast(_alone(comm.size, steps) if comm.rank == 0 else None)
    return ((weights - alone).norm() / alone.norm()).item()


@functools.cache
def _alone(ranks: int, steps: int) -> torch.Tensor:
    """The weights of one process after training with the global batch of all ranks."""
    model = perceptron()
    optimizer = adam(model.parameters())
    for step in range(steps):
        images, labels = global_batch(step, ranks)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class _Ahead(GatheredByLayer):
    """Stage 3 whose allgathers start when a learner's `Lookahead` says so; without one, when a layer computes."""

    def __init__(self, model: nn.Module, comm, make_optimizer: Callable, lookahead: Callable | None):
        self.under_way: dict[nn.Module, tuple] = {}  # an array and the handle of its allgather
        self.enter = lookahead(self.start, self.wait).enter if lookahead else self.gather
        super().__init__(model, comm, make_optimizer)

    def watch(self, layer: nn.Module) -> None:
        layer.register_forward_pre_hook(lambda layer, inputs: self.enter(layer, self.beside(layer, 1)))
        layer.register_forward_hook(lambda layer, inputs, outputs: self.drop(layer))
        layer.register_full_backward_pre_hook(lambda layer, gradients: self.enter(layer, self.beside(layer, -1)))
        for p in self.parameters[layer]:
            p.register_post_accumulate_grad_hook(lambda p: self.finish(layer))

    def beside(self, layer: nn.Module, places: int) -> nn.Module | None:
        """The layer that many places after this one; None if there is none."""
        layers = list(self.weights)
        place = layers.index(layer) + places
        return layers[place] if 0 <= place < len(layers) else None

    def start(self, layer: nn.Module) -> None:
        if layer in self.under_way:
            return
        whole = torch.empty_like(self.weights[layer])
        handle = dist.all_gather_single(whole, self.shards[layer].detach(), async_op=True)
        self.under_way[layer] = (whole, handle)

    def gather(self, layer: nn.Module, following: nn.Module | None = None) -> None:
        self.start(layer)
        self.wait(layer)

    def wait(self, layer: nn.Module) -> None:
        whole, handle = self.under_way.pop(layer)
        handle.wait()
        fill(self.weights[layer], whole)

    def drop(self, layer: nn.Module) -> None:
        free(self.weights[layer])

    def reduce(self, layer: nn.Module) -> None:
        part = torch.empty_like(self.shards[layer])
        dist.reduce_scatter_single(part, flat_gradient(self.parameters[layer], self.comm.size))
        self.shards[layer].grad = part / self.comm.size
        for p in self.parameters[layer]:
            p.grad = None


def stage_3_ms(lookahead: Callable | None) -> float:
    """Emulated milliseconds of a stage-3 step whose layers take 2 ms forward and 4 ms backward. All ranks call it.

    lookahead: a learner's `Lookahead`; None gathers each layer right before it computes.
    """
    comm = MPI.COMM_WORLD
    model = perceptron()
    for layer in model:
        if isinstance(layer, nn.Linear):
            emulation.takes(layer, forward_s=2e-3, backward_s=4e-3)
    _Ahead(model, comm, adam, lookahead)
    images, labels = batch(0, comm.rank, comm.size)
    comm.Barrier()
    start = time.perf_counter()
    cross_entropy(model(images), labels).backward()
    return 1e3 * (time.perf_counter() - start)
