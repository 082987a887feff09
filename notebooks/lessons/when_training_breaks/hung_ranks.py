"""A training run on sixteen ranks that hangs, in one of two ways. Learners of 13_when_training_breaks find out where.

    python -m lessons.when_training_breaks.hung_ranks FOLDER TIMEOUT_S     runs until its ranks have ended

Each rank writes FOLDER/log.RANK, as with `srun --output=log.%t`, and FOLDER/trace_RANK if a collective times out.
FOLDER has the run's data, and slow_clock.RANK for a rank whose clock is slow. This process imports PyTorch once
and forks the ranks.
"""

import faulthandler
import importlib
import os
import pickle
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from lessons.when_training_breaks.fault_catalogue_ranks import forked

RANKS = 16
STEPS = 30
STEP_S = 0.02
STEPS_PER_SHARD = 10
SAVE_AFTER_S = 0.5
LIMIT_S = 1800  # a rank ends after this time, whatever happens


def read_batch(folder: Path, rank: int, step: int) -> torch.Tensor:
    """Read this step's samples from the rank's shard of the data."""
    shard = folder / f"shard.{rank}.{step // STEPS_PER_SHARD}"
    with open(shard, "rb") as file:
        data = file.read()
    return torch.frombuffer(bytearray(data), dtype=torch.float32)


def average_gradient(gradient: torch.Tensor) -> None:
    dist.all_reduce(gradient)
    gradient /= RANKS


def save_checkpoint(weights: torch.Tensor, folder: Path) -> None:
    """Save rank 0's weights, which all ranks take first, to be sure that they're the same."""
    dist.broadcast(weights, src=0)
    if dist.get_rank() == 0:
        torch.save(weights, folder / "checkpoint.pt")


def train(rank: int, folder: Path, seconds_per_step: float) -> None:
    weights = torch.zeros(256)
    elapsed_s = 0.0
    for step in range(STEPS):
        batch = read_batch(folder, rank, step)
        gradient = weights - batch
        time.sleep(STEP_S)
        average_gradient(gradient)
        weights -= 0.1 * gradient
        print(f"rank {rank}: step {step}, loss {gradient.square().mean():.4f}", flush=True)
        elapsed_s += seconds_per_step
        if elapsed_s > SAVE_AFTER_S:
            save_checkpoint(weights, folder)
            elapsed_s = 0.0


def run(rank: int, folder: Path, timeout_s: float) -> None:
    """Be one of the ranks."""
    signal.alarm(LIMIT_S)
    faulthandler.register(signal.SIGUSR1)
    print(f"rank {rank} is process {os.getpid()}", flush=True)
    store = dist.FileStore(str(folder / "meeting"), RANKS)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timeout)
    clock_is_slow = (folder / f"slow_clock.{rank}").exists()
    try:
        train(rank, folder, seconds_per_step=STEP_S / 2 if clock_is_slow else STEP_S)
    except RuntimeError:
        dump_flight_record(folder / f"trace_{rank}")
        raise


def dump_flight_record(path: Path) -> None:
    """Write PyTorch's flight record, as NCCL's watchdog would do after a time-out.

    gloo has no watchdog, and its records don't name their group as torchfrtrace expects.
    """
    record = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())  # type: ignore[attr-defined]
    record["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(RANKS)))}}
    path.write_bytes(pickle.dumps(record))


if __name__ == "__main__":
    torch.set_num_threads(1)
    importlib.import_module("torch._inductor")  # a dump with stack traces needs it, and it takes seconds
    folder = Path(sys.argv[1])
    pids = [forked(folder / f"log.{rank}", run, rank, folder, float(sys.argv[2])) for rank in range(RANKS)]
    for pid in pids:
        os.waitpid(pid, 0)
