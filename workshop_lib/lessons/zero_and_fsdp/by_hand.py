"""What 06_zero_and_fsdp does around a learner's classes: a network to train, and trainings that count bytes.

Everything here runs on the ranks. `train` and `train_fsdp` are called on all of them, and block.
"""

import functools
import time
import warnings
from collections.abc import Callable, Iterable
from typing import cast

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

from workshop_lib import emulation
from workshop_lib.collectives.counting import CountingComm
from workshop_lib.data import mnist
from workshop_lib.lessons.zero_and_fsdp.cost import TrainingCost
from workshop_lib.lessons.zero_and_fsdp.flat_arrays import (
    GatheredByLayer,
    ReducedInBackward,
    fill,
    flat_gradient,
    flat_weights,
    free,
    live_bytes,
    trained,
)
from workshop_lib.lessons.zero_and_fsdp.newer_names import give_newer_names
from workshop_lib.lessons.zero_and_fsdp.traffic import Traffic
from workshop_lib.machine import world
from workshop_lib.models import torch_cnn
from workshop_lib.training import rendezvous

__all__ = [
    "CountingComm",
    "GatheredByLayer",
    "ReducedInBackward",
    "batch",
    "fill",
    "flat_gradient",
    "flat_weights",
    "free",
    "join",
    "live_bytes",
    "perceptron",
    "stage_3_ms",
    "train",
    "train_fsdp",
    "trained",
    "with_fsdp",
]

SAMPLES = 64  # samples per rank and step
STEPS = 3

give_newer_names()


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
    split = _train_set()
    together = slice(step * SAMPLES * ranks, (step + 1) * SAMPLES * ranks)
    return torch_cnn.normalize(torch.tensor(split.images[together])), torch.tensor(split.labels[together]).long()


@functools.cache
def _train_set():
    return mnist.load("train")


def adam(parameters: Iterable) -> torch.optim.Optimizer:
    return torch.optim.Adam(list(parameters), lr=1e-3)


def train(make: Callable, micro_batches: int = 1, steps: int = STEPS) -> TrainingCost:
    """Train the perceptron with what `make(model, comm, make_optimizer)` returns."""
    counting = CountingComm(MPI.COMM_WORLD)
    model = perceptron()
    zero = make(model, counting, adam)
    held: dict[str, int] = {}
    for step in range(steps):
        model.zero_grad()
        zero.optimizer.zero_grad()
        images, labels = batch(step, counting.rank, counting.size)
        for some, their_labels in zip(images.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
            (cross_entropy(model(some), their_labels) / micro_batches).backward()
        held = live_bytes(model, zero.optimizer)
        zero.step()
    sent_bytes = counting.bytes_sent / steps
    if isinstance(zero, GatheredByLayer):
        for layer in zero.layers:
            zero.gather(layer)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return TrainingCost(len(weights), held, _distance(weights, steps), sent_bytes)


def with_fsdp(model: nn.Sequential, **options) -> nn.Sequential:
    """Make each layer of the perceptron a unit of FSDP, in place, and return the model."""
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def train_fsdp(model: nn.Module, steps: int = STEPS) -> TrainingCost:
    """Train a perceptron to which `fully_shard` has been applied."""
    comm = MPI.COMM_WORLD
    optimizer = adam(model.parameters())
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
    return TrainingCost(len(weights), held, distance, traffic.sharded_bytes_sent, dict(traffic.calls))


def _distance(weights: torch.Tensor, steps: int) -> float:
    """How far these weights are from those of one process that trains with the global batch."""
    comm = MPI.COMM_WORLD
    alone = comm.bcast(_alone(comm.size, steps) if comm.rank == 0 else None)
    return ((weights - alone).norm() / alone.norm()).item()


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
        self.under_way: dict[
            nn.Module, list
        ] = {}  # for each parameter of a layer, an array and the handle of its allgather
        if lookahead is not None:
            self.enter = lookahead(self.start, self.wait).enter  # type: ignore[method-assign]
        super().__init__(model, comm, make_optimizer)

    def start(self, layer: nn.Module) -> None:
        if layer in self.under_way:
            return
        self.under_way[layer] = []
        for p in self.parameters[layer]:
            whole = torch.empty(len(self.weights[p]))
            handle = dist.all_gather_single(whole, self.shards[p].detach(), async_op=True)
            self.under_way[layer].append((p, whole, handle))

    def gather(self, layer: nn.Module) -> None:
        self.start(layer)
        self.wait(layer)

    def wait(self, layer: nn.Module) -> None:
        for p, whole, handle in self.under_way.pop(layer):
            handle.wait()
            fill(self.weights[p], whole)

    def reduce(self, p: nn.Parameter) -> None:
        part = torch.empty_like(self.shards[p])
        dist.reduce_scatter_single(part, flat_gradient([p], self.comm.size))
        self.shards[p].grad = part / self.comm.size
        p.grad = None
        free(self.weights[p])


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
