"""The run record: what ran, where, and what came out of it, as one JSON-ready dict."""

import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from workshop_lib import paths
from workshop_lib.errors import WorkshopError
from workshop_lib.machine import environment
from workshop_lib.machine.cores import affinity, core_ids, in_words, quota
from workshop_lib.machine.emulation import session
from workshop_lib.training import SCHEMA
from workshop_lib.training.backends.base import Backend, Communicator
from workshop_lib.training.options import TrainOptions
from workshop_lib.words import ranges

TARGET_ACCURACY = 0.99
PACKAGES = ("torch", "tensorflow", "tensorflow-cpu", "keras", "horovod", "deepspeed", "numpy", "mpi4py")


class RunError(WorkshopError, RuntimeError):
    """The ranks of a run do not agree, or one of them could not go on; the message names the ranks."""


class EpochRow(TypedDict):
    """One epoch's metrics over all samples of all ranks. A loss is None if it is not finite (see training.diverged)."""

    epoch: int
    seconds: float
    samples_per_s: float
    train_loss: float | None
    train_accuracy: float
    test_loss: float | None
    test_accuracy: float
    lr: float
    communication_s: float | None  # mean over the ranks; None unless averaging is a step of its own


class RunSetup(TypedDict):
    """What a run was on, in addition to its options."""

    backend: str
    comm: str | None  # what carried the messages: gloo, nccl, xccl or mpi; None unless PyTorch did
    world_size: int
    global_batch: int
    threads_per_rank: int
    binding: str
    launcher: str
    oversubscribed: bool
    machine: str | None  # the machine that the ranks emulated; None for a run whose times were measured


class Where(TypedDict):
    """The machine that a run used, and the versions of its software."""

    hosts: list[str]  # one per rank
    cpu_model: str
    cores: int  # number of cores that the ranks on rank 0's host can use together
    hardware_threads: NotRequired[int]  # of these cores, if they have more than one each
    device: str
    gpu_model: str | None
    python: str
    versions: dict[str, str]
    mpi_library: str | None
    commit: str | None
    neutralized: NotRequired[list[str]]  # what was done about harmful variables, one sentence each


class NothingTestedError(WorkshopError, IndexError):
    """There is no epoch to look at, because the training was stopped in its first one."""


class Epochs(list):
    """The epochs of a training run. Asking for one of none says why there is none."""

    def __getitem__(self, index):
        if not self and not isinstance(index, slice):
            raise NothingTestedError(
                "The training was stopped before the first test, so it has no result. Run its cell again, and let it "
                "train for at least one epoch."
            )
        return super().__getitem__(index)


class RunRecord(TypedDict):
    """One line of a record file."""

    schema: int
    kind: str
    started: str
    what: dict[str, Any]  # the options of the run (TrainOptions), and its RunSetup
    where: Where
    epochs: list[EpochRow]
    seconds_to_99: float | None  # training and evaluation time until TARGET_ACCURACY; None if not reached
    memory: dict[str, list[int | None]] | None  # bytes on each rank, None where unknown
    weights_sha256: list[str]  # one per rank
    ranks_identical: bool | None
    stopped: bool
    recipe: NotRequired[str]  # the name of the recipe that ran (lessons/large_batch/recipes.py)
    ladder: NotRequired[dict[str, float]]  # the result of equivalence.compare(), added by a sweep


class RankDescription(TypedDict):
    """What one rank contributes to the record."""

    host: str
    affinity: list[int]  # hardware threads
    cores: list[int]  # the cores of the affinity (see machine/cores.py)
    host_cores: int
    quota: int
    threads: int
    gpu: str | None
    neutralized: list[str]


def describe_rank(device) -> RankDescription:
    """Describe this rank's host, cores, threads and GPU."""
    import torch  # imported here because programs that only read records use this file's types too

    return {
        "host": socket.gethostname(),
        "affinity": sorted(affinity()),
        "cores": sorted(core_ids(affinity())),
        "host_cores": os.cpu_count() or 1,
        "quota": quota(),
        "threads": torch.get_num_threads(),
        "gpu": torch.get_device_module(device).get_device_name(device) if device.type != "cpu" else None,
        "neutralized": environment.notes(),
    }


def begin_record(options: TrainOptions, backend: Backend) -> RunRecord:
    """Return the record of a run that begins now, without results. All ranks call it, and it blocks."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    ranks = backend.allgather(describe_rank(backend.device))
    # All ranks use rank 0's start time and commit, so that the record is the same on every rank.
    commit = commit_here() if backend.world.rank == 0 else None
    started, commit = backend.allgather((started, commit))[0]
    world = backend.world
    emulation = session.CURRENT.emulation
    machine = emulation.machine.name if emulation is not None else None
    cores, hardware_threads = usable_together([rank for rank in ranks if rank["host"] == ranks[0]["host"]])
    setup: RunSetup = {
        "backend": backend.name,
        "comm": backend.transport,
        "world_size": world.world_size,
        "global_batch": options.global_batch(world.world_size),
        "threads_per_rank": max(rank["threads"] for rank in ranks),
        "binding": binding(ranks),
        "launcher": world.launcher,
        "oversubscribed": oversubscribed(ranks) and machine is None,
        "machine": machine,
    }
    where: Where = {
        "hosts": [rank["host"] for rank in ranks],
        "cpu_model": cpu_model(),
        "cores": cores,
        "device": backend.device.type,
        "gpu_model": ranks[0]["gpu"],
        "python": platform.python_version(),
        "versions": _versions(),
        "mpi_library": _mpi_library(backend),
        "commit": commit,
    }
    if hardware_threads > cores:
        where["hardware_threads"] = hardware_threads
    if neutralized := list(dict.fromkeys(sentence for rank in ranks for sentence in rank["neutralized"])):
        where["neutralized"] = neutralized
    return {
        "schema": SCHEMA,
        "kind": "train",
        "started": started,
        "what": options.as_dict() | setup,
        "where": where,
        "epochs": [],
        "seconds_to_99": None,
        "memory": None,
        "weights_sha256": [],
        "ranks_identical": None,
        "stopped": False,
    }


def weights_sha256(weights: list[np.ndarray]) -> str:
    """Return the SHA-256 of all parameters' bytes, in the order given."""
    digest = hashlib.sha256()
    for values in weights:
        # NaN has many bit patterns. Use a single one, so that ranks that diverged alike get the same digest.
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
    """Return the mean loss, the accuracy and the number of samples over all ranks.

    sums: float64 [3], this rank's summed loss, correct answers and samples. The function adds sums and never averages
    means. All ranks call it and get the same result. Blocks. Raises RunError if `total` is given and the ranks together
    saw a different number of samples.
    """
    loss, correct, samples = ranks.sum(sums).tolist()
    if total is not None and samples != total:
        raise RunError(
            f"the ranks together saw {int(samples)} {what} samples instead of {total}: the shards "
            "overlap or leave samples out"
        )
    return loss / samples, correct / samples, int(samples)


def binding(ranks: list[RankDescription]) -> str:
    """Return "none" if every rank may run on every core of its host, else a text that lists the ranks' cores.

    Where cores have several hardware threads, the text lists these, because ranks may be bound to threads of one core.
    """
    if all(len(rank["affinity"]) == rank["host_cores"] for rank in ranks):
        return "none"
    distinct = dict.fromkeys(",".join(ranges(rank["affinity"])) for rank in ranks)
    unit = "cores" if all(rank["affinity"] == rank["cores"] for rank in ranks) else "hardware threads"
    return f"{unit} " + " | ".join(distinct)


def cores_in_words(where: Where) -> str:
    """Return "4 cores", or "2 hardware threads of 1 core": what the ranks on rank 0's host can use together."""
    return in_words(where["cores"], where.get("hardware_threads", 0))


def oversubscribed(ranks: list[RankDescription]) -> bool:
    """Return whether, on any host, these ranks run more threads than they have cores."""
    for host in {rank["host"] for rank in ranks}:
        here = [rank for rank in ranks if rank["host"] == host]
        cores, _ = usable_together(here)
        if sum(rank["threads"] for rank in here) > cores:
            return True
    return False


def usable_together(here: list[RankDescription]) -> tuple[int, int]:
    """Return how many cores, and how many hardware threads of them, the ranks of one host can use together."""
    cores = {core for rank in here for core in rank["cores"]}
    threads = {thread for rank in here for thread in rank["affinity"]}
    # A cgroup's quota limits all ranks of the host together, while a binding limits each rank separately.
    most = max(rank["quota"] for rank in here)
    return min(len(cores), most), min(len(threads), most)


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
    """Return the first words of the MPI library's own description, or None if this run does not use MPI."""
    if getattr(backend, "comm", None) is None and backend.world.launcher not in ("mpiexec", "engines"):
        return None
    from mpi4py import MPI

    return MPI.Get_library_version().splitlines()[0].split(",")[0].strip("\0 ")


def commit_here() -> str | None:
    """Return the commit of this checkout; None if it isn't a clone, even if it lies inside another repository."""
    # With this option, git looks nowhere else, and also answers about another account's checkout.
    command = ["git", f"--git-dir={paths.ROOT / '.git'}", "rev-parse", "--short", "HEAD"]
    try:
        result = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
