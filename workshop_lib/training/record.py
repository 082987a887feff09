"""The run record: what ran, where, and what came out of it, as one JSON-ready dict."""

import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import numpy as np

from workshop_lib import environment, paths
from workshop_lib.errors import WorkshopError
from workshop_lib.training import SCHEMA
from workshop_lib.training.backends.base import Backend, Communicator
from workshop_lib.training.cores import affinity, usable_cores
from workshop_lib.training.options import TrainOptions

TARGET_ACCURACY = 0.99
PACKAGES = ("torch", "tensorflow", "tensorflow-cpu", "keras", "horovod", "deepspeed", "numpy", "mpi4py")


class RunError(WorkshopError, RuntimeError):
    """The ranks of a run do not agree, or one of them could not go on; the text names them."""


class EpochRow(TypedDict):
    """One epoch, over all samples of all ranks. A loss is None where it is not finite (see training.diverged)."""

    epoch: int
    seconds: float
    samples_per_s: float
    train_loss: float | None
    train_accuracy: float
    test_loss: float | None
    test_accuracy: float
    lr: float
    communication_s: float | None  # per rank, on average; None where it overlaps with computing


class What(TypedDict):
    """What ran: the fields of TrainOptions, and what follows from them on these ranks."""

    backend: str
    epochs: int
    batch_size: int
    lr: float
    lr_scaling: str
    warmup_epochs: float
    decay: str
    optimizer: str
    device: str
    seed: int
    # Records written before these options existed do not have them.
    zero_stage: NotRequired[int | None]
    comm: NotRequired[str | None]  # gloo, nccl or mpi, of the backends that can choose
    network: NotRequired[str]
    precision: NotRequired[str]
    warmup: NotRequired[str]
    momentum: NotRequired[float | None]
    nesterov: NotRequired[bool]
    weight_decay: NotRequired[float]
    label_smoothing: NotRequired[float]
    data_dir: NotRequired[str | None]
    checkpoint: NotRequired[str | None]
    resume: NotRequired[bool]
    max_steps: NotRequired[int | None]
    train_samples: NotRequired[int | None]
    emulate_workers: NotRequired[int | None]
    world_size: int
    global_batch: int
    threads_per_rank: int
    binding: str
    launcher: str
    oversubscribed: bool


class Where(TypedDict):
    """The machine, and the versions of what ran."""

    hosts: list[str]  # of each rank
    cpu_model: str
    cores: int  # that the ranks on rank 0's host can use together
    device: str
    gpu_model: str | None
    python: str
    versions: dict[str, str]
    mpi_library: str | None
    commit: str | None
    neutralized: NotRequired[list[str]]  # what harmed ranks in their environment, and what was done about it


class Compute(TypedDict):
    """How much of the processors' peak a run used, where somebody has measured it (flops.py)."""

    flops_per_sample: int  # forward and backward, counted
    peak_flops_per_s: float  # of all ranks together, measured
    utilization: float  # [0, 1], in the last epoch


class RunRecord(TypedDict):
    """One line of a record file."""

    schema: int
    kind: str
    started: str
    what: What
    where: Where
    epochs: list[EpochRow]
    seconds_to_99: float | None  # of training and evaluation, until TARGET_ACCURACY
    memory: dict[str, list[int | None]] | None  # bytes on each rank, None where they are not known
    weights_sha256: list[str]  # of each rank
    ranks_identical: bool | None
    stopped: bool
    compute: NotRequired[Compute]  # of PyTorch's backends
    recipe: NotRequired[str]  # its name, and the phases of a run that had several (lessons/large_batch/recipes.py)
    phases: NotRequired[list[dict]]
    ladder: NotRequired[dict[str, float]]  # equivalence.compare(), which a sweep adds


class RankDescription(TypedDict):
    """What one rank contributes to the record."""

    host: str
    affinity: list[int]
    host_cores: int
    cores: int
    threads: int
    gpu: str | None
    neutralized: list[str]


def describe_rank(device) -> RankDescription:
    """This rank's host, cores and threads."""
    import torch  # here, because this file's types are also for those who only read records

    return {
        "host": socket.gethostname(),
        "affinity": sorted(affinity()),
        "host_cores": os.cpu_count() or 1,
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "neutralized": environment.notes(),
    }


def start(options: TrainOptions, backend: Backend) -> RunRecord:
    """The record of a run that now begins, without results; all ranks call it."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    ranks = backend.allgather(describe_rank(backend.device))
    # Rank 0 asks git, and its time counts, so that the record is the same on every rank.
    commit = _commit() if backend.world.rank == 0 else None
    started, commit = backend.allgather((started, commit))[0]
    world = backend.world
    what = options.as_dict() | {
        "backend": backend.name,
        "comm": backend.transport,
        "world_size": world.world_size,
        "global_batch": options.global_batch(world.world_size),
        "threads_per_rank": max(rank["threads"] for rank in ranks),
        "binding": binding(ranks),
        "launcher": world.launcher,
        "oversubscribed": oversubscribed(ranks),
    }
    where: Where = {
        "hosts": [rank["host"] for rank in ranks],
        "cpu_model": cpu_model(),
        "cores": cores_of([rank for rank in ranks if rank["host"] == ranks[0]["host"]]),
        "device": backend.device.type,
        "gpu_model": ranks[0]["gpu"],
        "python": platform.python_version(),
        "versions": _versions(),
        "mpi_library": _mpi_library(backend),
        "commit": commit,
    }
    if neutralized := list(dict.fromkeys(sentence for rank in ranks for sentence in rank["neutralized"])):
        where["neutralized"] = neutralized
    return {
        "schema": SCHEMA,
        "kind": "train",
        "started": started,
        "what": cast(What, what),
        "where": where,
        "epochs": [],
        "seconds_to_99": None,
        "memory": None,
        "weights_sha256": [],
        "ranks_identical": None,
        "stopped": False,
    }


def weights_sha256(weights: list[np.ndarray]) -> str:
    """SHA-256 of all parameters' bytes, in this order."""
    digest = hashlib.sha256()
    for values in weights:
        # A NaN can be any of many bit patterns; ranks that diverged alike must not differ by that.
        digest.update(np.where(np.isnan(values), values.dtype.type(np.nan), values).tobytes())
    return digest.hexdigest()


def check_identical(digests: list[str]) -> None:
    """Raise RunError naming the ranks whose weights differ from rank 0's."""
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if different:
        raise RunError(
            f"the weights of rank {', '.join(map(str, different))} differ from those of rank 0 "
            "after training: the gradients were not averaged on every rank, or the ranks did "
            "not start from the same weights"
        )


def over_ranks(what: str, sums: np.ndarray, total: int | None, ranks: Communicator) -> tuple[float, float, int]:
    """Mean loss, accuracy and number of samples, from each rank's sums: float64 [3], the loss, the correct
    answers and the samples. Sums are added, means never averaged. All ranks call it and get the same.

    Raises RunError when the ranks together saw a different number of samples than `total`, if it is given.
    """
    loss, correct, samples = ranks.sum(sums).tolist()
    if total is not None and samples != total:
        raise RunError(
            f"the ranks together saw {int(samples)} {what} samples instead of {total}: the shards "
            "overlap or leave samples out"
        )
    return loss / samples, correct / samples, int(samples)


def binding(ranks: list[RankDescription]) -> str:
    """ "none" when every rank may run on every core of its host, else the cores of each."""
    if all(len(rank["affinity"]) == rank["host_cores"] for rank in ranks):
        return "none"
    distinct = dict.fromkeys(_ranges(rank["affinity"]) for rank in ranks)
    return "cores " + " | ".join(distinct)


def oversubscribed(ranks: list[RankDescription]) -> bool:
    """Whether any host runs more threads than it has cores for these ranks."""
    for host in {rank["host"] for rank in ranks}:
        here = [rank for rank in ranks if rank["host"] == host]
        if sum(rank["threads"] for rank in here) > cores_of(here):
            return True
    return False


def cores_of(here: list[RankDescription]) -> int:
    """How many cores the ranks of one host can use together."""
    cores = len({core for rank in here for core in rank["affinity"]})
    # A cgroup's quota limits all ranks of the host together, a binding each rank alone.
    quota = max(rank["cores"] for rank in here)
    return min(cores, quota) if quota < len(here[0]["affinity"]) else cores


def _ranges(cores: Iterable[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _mpi_library(backend) -> str | None:
    """First words of the MPI library's own description, when this run uses it."""
    if getattr(backend, "comm", None) is None and backend.world.launcher not in ("mpiexec", "engines"):
        return None
    from mpi4py import MPI

    return MPI.Get_library_version().splitlines()[0].split(",")[0].strip("\0 ")


def _commit() -> str | None:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        result = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
