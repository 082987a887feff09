"""Measure the test accuracy of ways to communicate less, and the bytes per sample that they still send.

    mpiexec -n 4 python -m lessons.less_communication.runs --out build/less_communication.jsonl

07c_less_communication trains with this file's functions, and plots records of this command from
assets/results/less_communication.jsonl. Every method trains the same network for the same number of steps, on the same
samples and by plain SGD. It either sends the gradients of every step, compressed, or lets the ranks step alone for a
while and then combines their weights into one set.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from workshop_lib.exercises.solutions import Solution
from workshop_lib.machine import world
from workshop_lib.notebook.results import records
from workshop_lib.training import SCHEMA, rendezvous
from workshop_lib.training.collectives.counting import GivenBytes
from workshop_lib.training.data import mnist, shard
from workshop_lib.training.models import torch_cnn

from lessons.less_communication import compression

KIND = "less_communication"
PARAMETERS = 20_434  # of the network that all methods train
BATCH = 64
LR = 0.1
STEPS = 256


class Rounds(NamedTuple):
    """Rounds: each rank steps alone `period` times, and then `outer` combines the ranks' weights into one set."""

    period: int
    outer: Callable


Way = compression.Register | Rounds


def ways() -> dict[str, Way]:
    """Return the methods to compare, by name. Hooks are new ones, because each keeps its own model's residuals."""
    of_steps = {name: way for name, way in compression.ways().items() if name != "fp16"}  # fp16 learns as fp32 does
    outer_step = Solution("07c_less_communication", "outer_step").load()
    mean = partial(outer_step, lr=1.0, momentum=0.0)
    of_rounds = {f"local SGD, {period} steps alone": Rounds(period, mean) for period in (8, 64)}
    of_rounds |= {f"DiLoCo, {period} steps alone": Rounds(period, outer_step) for period in (8, 64)}
    return of_steps | of_rounds


def train(
    name: str, way: Way, steps: int = STEPS, seed: int = 1, batch: int = BATCH, lr: float = LR, momentum: float = 0.0
) -> dict:
    """Train once by this method; return the record.

    batch: samples per rank and step. momentum: Nesterov momentum in every step of every rank. All ranks call this
    function, and it blocks.
    """
    comm = MPI.COMM_WORLD
    torch.set_num_threads(1)
    rendezvous.join_process_group(world.detect(), torch.device("cpu"))
    train_set = mnist.load("train")
    test = mnist.load("test", None, comm.rank, comm.size)
    network = torch_cnn.build(seed)
    batches = itertools.islice(_batches(train_set, batch, comm, seed), steps)
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0)
    if isinstance(way, Rounds):
        bytes_sent = _in_rounds(network, way, optimizer, batches, steps)
    else:
        bytes_sent = _every_step(network, way, optimizer, batches)
    with torch.no_grad():
        parts = np.array_split(np.arange(len(test.labels)), 10)
        answers = [network(torch_cnn.normalize(torch.tensor(test.images[rows]))).argmax(dim=1) for rows in parts]
    right = comm.allreduce(int((torch.cat(answers).numpy() == test.labels).sum()))
    weights = comm.allgather(_vector(network).tobytes())
    what = {"way": name, "world_size": comm.size, "batch_size": batch, "steps": steps, "lr": lr, "momentum": momentum}
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "what": what | {"seed": seed},
        "bytes_per_sample": bytes_sent / (steps * batch),
        "test_accuracy": right / test.total,
        "ranks_identical": len(set(weights)) == 1,
    }


def _batches(data: mnist.Split, batch: int, comm, seed: int) -> Iterator[tuple]:
    for epoch in itertools.count(1):
        for rows, n_global in shard.epoch_batches(data.total, batch, comm.rank, comm.size, seed, epoch):
            if n_global == batch * comm.size:  # skips the smaller batch at the end of an epoch
                yield torch_cnn.normalize(torch.tensor(data.images[rows])), torch.tensor(data.labels[rows]).long()


def _every_step(
    network: nn.Module, register: compression.Register, optimizer: torch.optim.Optimizer, batches: Iterable[tuple]
) -> int:
    """Train with this hook; return how many bytes this rank passed to collectives."""
    model = DistributedDataParallel(network)
    register(model)
    with compression.count_messages() as sent:
        for images, labels in batches:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
    return sent["bytes"]


def _in_rounds(
    network: nn.Module, rounds: Rounds, optimizer: torch.optim.Optimizer, batches: Iterable[tuple], steps: int
) -> int:
    """Train in rounds (the last one may be shorter); return how many bytes this rank passed to collectives."""
    comm = GivenBytes(MPI.COMM_WORLD)
    start = _vector(network)
    velocity = np.zeros_like(start)
    for step, (images, labels) in enumerate(batches, 1):
        optimizer.zero_grad()
        cross_entropy(network(images), labels).backward()
        optimizer.step()
        if step % rounds.period == 0 or step == steps:
            start, velocity = rounds.outer(comm, start, _vector(network), velocity)
            vector_to_parameters(torch.tensor(start, dtype=torch.float32), network.parameters())
    return comm.nbytes


def _vector(network: nn.Module) -> np.ndarray:
    return parameters_to_vector(network.parameters()).detach().numpy().copy()


def table(runs: list[dict]) -> pd.DataFrame:
    """Return bytes per sample, test accuracy, and whether the ranks ended with the same weights, by method.

    The share of bytes compares with gradients that are sent whole in every step.
    """
    frame = pd.DataFrame([run["what"] | run for run in runs]).set_index("way")
    frame.columns = frame.columns.str.replace("_", " ")
    frame["share of bytes"] = frame["bytes per sample"] / (4 * PARAMETERS / frame["batch size"])
    return frame[["bytes per sample", "share of bytes", "test accuracy", "ranks identical"]]


def formatted(frame: pd.DataFrame):
    """Return `table`'s result with readable numbers."""
    return frame.style.format({"bytes per sample": "{:,.1f}", "share of bytes": "{:.1%}", "test accuracy": "{:.2%}"})


def main(arguments: list[str] | None = None) -> int:
    """Run the command shown at the top of this file; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m lessons.less_communication.runs")
    parser.add_argument("--out", required=True, help="record file (JSON lines) to append to")
    out = parser.parse_args(arguments).out
    recipes = [(name, LR, 0.0) for name in ways()] + [("fp32", 0.03, 0.9)]
    for (name, lr, momentum), seed in itertools.product(recipes, (1, 2, 3)):
        record = train(name, ways()[name], STEPS, seed, lr=lr, momentum=momentum)
        if MPI.COMM_WORLD.rank == 0:
            records.write(out, record)
            print(f"{name}, momentum {momentum:g}, seed {seed}: {record['test_accuracy']:.2%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
