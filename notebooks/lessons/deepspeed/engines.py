"""What 06b_deepspeed does around DeepSpeed's engines: start DeepSpeed, get batches, and measure.

Importing this raises InputError if DeepSpeed is missing. Only `join` imports DeepSpeed itself, because that takes
seconds and the notebook's own process doesn't need it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # here everything stays on the CPU, also beside a GPU

import torch
from mpi4py import MPI

from workshop_lib.machine import world
from workshop_lib.notebook.figures import RecordFigure
from workshop_lib.training import backends, memory

from lessons.zero_and_fsdp import by_hand, figures

backends.require("deepspeed")

# DeepSpeed's defaults are made for models with billions of parameters: with them, a small network would stay gathered.
BUCKETS = {
    "reduce_bucket_size": 1_200_000,  # elements in one message
    "allgather_bucket_size": 1_200_000,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_param_persistence_threshold": 0,  # smaller parameters are never sharded
}


def join() -> MPI.Comm:
    """Call deepspeed.init_distributed(), without letting it compile anything, and return MPI's communicator.

    All ranks call it, and it blocks.
    """
    from workshop_lib.training.backends import deepspeed as backend

    torch.set_num_threads(1)
    backend.join_deepspeed(world.detect(), torch.device("cpu"))
    return MPI.COMM_WORLD


def for_a_small_network(config: Mapping) -> dict:
    """The configuration with smaller buckets, and without DeepSpeed's exceptions for small parameters."""
    return {**config, "zero_optimization": {**config["zero_optimization"], **BUCKETS}}


def micro_batches(engine, steps: int = 2) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's samples, at most 64, in as many parts as the engine accumulates; the same samples in each step."""
    comm = MPI.COMM_WORLD
    images, labels = by_hand.batch(0, comm.rank, comm.size)
    images = images.to(next(engine.module.parameters()).dtype)
    parts = engine.gradient_accumulation_steps()
    samples = parts * engine.train_micro_batch_size_per_gpu()
    for _ in range(steps):
        yield from zip(images[:samples].chunk(parts), labels[:samples].chunk(parts), strict=True)


def held_bytes(engine) -> dict[str, int]:
    """Bytes of the model's states on this rank, by kind. Call it between the backward pass and the step."""
    return memory.live_bytes(engine.module, engine.optimizer)


def draw(by_rank: Sequence[Mapping[str, Mapping[str, int]]], parameters: int) -> RecordFigure:
    """Draw what each rank holds. by_rank[rank][title]: bytes by kind."""
    return figures.zero({title: [held[title] for held in by_rank] for title in by_rank[0]}, parameters)
