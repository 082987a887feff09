"""The ranks of the fault catalogue (fault_catalogue.py): a small training run, and what goes wrong on one rank.

    python -m lessons.when_training_breaks.fault_catalogue_ranks FAULT …     prints a JSON line per fault

13_when_training_breaks shows the results as a table. This process imports PyTorch once and forks three ranks for each
fault. Several faults run at the same time.
"""

import hashlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

RANKS = 3
SICK = 1
AT_ONCE = 4  # faults that run at the same time; their ranks mostly wait
STEPS = 12
AT = 4  # the fault happens in the step after this many complete ones
STEP_S = 0.02
SLOW_S = 0.2
TIMEOUT_S = 1.5  # gloo's time-out, half an hour by default
START_LIMIT_S = 30.0  # ranks are killed this long after their start
LIMIT_S = 4.0  # or this long after the fault
ROOM_BYTES = 2**28
HUGE_BYTES = 2**34
LARGEST_FILE_BYTES = 2**16


@dataclass
class SmallTraining:
    """The state of one rank's training, which a fault may change."""

    folder: Path
    weights: torch.Tensor
    gradient: torch.Tensor
    step: int = 0
    step_s: float = STEP_S
    losses: list[float] = field(default_factory=list)


def _raises(of: SmallTraining) -> None:
    raise ValueError("image 4711 has 3 channels")


def _runs_out_of_memory(of: SmallTraining) -> None:
    """Limit this process's memory first, so that the machine itself never runs out of it."""
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, used + ROOM_BYTES))
    torch.zeros(HUGE_BYTES, dtype=torch.uint8)


def _is_slow(of: SmallTraining) -> None:
    of.step_s = SLOW_S


def _runs_out_of_data(of: SmallTraining) -> None:
    of.step = STEPS


def _sends_another_shape(of: SmallTraining) -> None:
    of.gradient = of.gradient[: len(of.gradient) // 2].clone()


def _calls_in_another_order(of: SmallTraining) -> None:
    """Broadcast before averaging, while the other ranks average before they broadcast."""
    dist.broadcast(torch.zeros(8), src=0)


def _computes_nan(of: SmallTraining) -> None:
    of.gradient[7] = float("nan")


def _flip(values: torch.Tensor, bit: int) -> None:
    """Flip one bit of the value with the largest magnitude, in place."""
    whole = values.view(torch.int32)
    whole[values.abs().argmax()] ^= 1 << bit


def _loses_its_loader(of: SmallTraining) -> None:
    """Kill a worker process that reads data, as the kernel does when memory is short."""
    for _ in DataLoader(_Deadly(), num_workers=1):  # type: ignore[arg-type]
        pass


class _Deadly:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int) -> int:
        if at == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return at


def _fills_the_disk(of: SmallTraining) -> None:
    """Write a file that exceeds this process's limit on file sizes, which takes the place of a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE_BYTES, LARGEST_FILE_BYTES))
    with open(of.folder / "checkpoint.pt", "wb") as file:
        torch.save(torch.zeros(LARGEST_FILE_BYTES), file)


def _finds_half_a_checkpoint(of: SmallTraining) -> None:
    path = of.folder / "checkpoint.pt"
    torch.save(torch.zeros(LARGEST_FILE_BYTES), path)
    os.truncate(path, path.stat().st_size // 2)
    torch.load(path, weights_only=True)


FAULTS: dict[str, Callable[[SmallTraining], None]] = {
    "raises": _raises,
    "is killed": lambda of: os.kill(os.getpid(), signal.SIGKILL),
    "runs out of memory": _runs_out_of_memory,
    "hangs": lambda of: time.sleep(3600),
    "is stopped": lambda of: os.kill(os.getpid(), signal.SIGSTOP),
    "is slow": _is_slow,
    "runs out of data": _runs_out_of_data,
    "sends another shape": _sends_another_shape,
    "calls in another order": _calls_in_another_order,
    "computes a NaN": _computes_nan,
    "flips a bit of its gradient": lambda of: _flip(of.gradient, bit=29),
    "flips a bit of its weights": lambda of: _flip(of.weights, bit=22),
    "loses its data loader": _loses_its_loader,
    "fills the disk": _fills_the_disk,
    "finds half a checkpoint": _finds_half_a_checkpoint,
    "is healthy": lambda of: None,
}


def train(rank: int, fault: str, folder: Path) -> None:
    """Run one rank: gradient descent on a least-squares problem whose samples are divided among the ranks."""
    here = dist.FileStore(str(folder / "meeting"), RANKS)
    dist.init_process_group("gloo", store=here, rank=rank, world_size=RANKS, timeout=timedelta(seconds=TIMEOUT_S))
    generator = torch.Generator().manual_seed(1 + rank)
    inputs = torch.randn(64, 16, generator=generator)
    targets = inputs @ torch.linspace(-1, 1, 16) + 0.1 * torch.randn(64, generator=generator)
    of = SmallTraining(folder, torch.zeros(16), torch.zeros(16))
    steps_s: list[float] = []
    while of.step < STEPS:
        began_s = time.monotonic()
        apart = inputs @ of.weights - targets
        of.losses.append((apart**2).mean().item())
        of.gradient = 2 * inputs.T @ apart / len(inputs)
        time.sleep(of.step_s)
        if of.step == AT and rank == SICK:
            (folder / "fault").write_text(str(time.monotonic()))
            FAULTS[fault](of)
        dist.all_reduce(of.gradient)
        of.gradient /= RANKS
        if fault == "calls in another order" and of.step == AT and rank != SICK:
            dist.broadcast(torch.zeros(8), src=0)
        of.weights -= 0.2 * of.gradient[: len(of.weights)]
        of.step += 1
        steps_s.append(time.monotonic() - began_s)
        digest = hashlib.sha256(of.weights.numpy().tobytes()).hexdigest()[:8]
        report = {"losses": of.losses, "steps_s": steps_s, "digest": digest}
        (folder / f"part.{rank}").write_text(json.dumps(report))
        (folder / f"part.{rank}").replace(folder / f"report.{rank}")


def forked(log: Path, work: Callable, *arguments: object) -> int:
    """Fork a process that prints into the file `log` and ends after work(*arguments); return its process number."""
    if pid := os.fork():
        return pid
    words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(words, 1)
    os.dup2(words, 2)
    code = 1
    try:
        work(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)  # exits even if a DataLoader's signal handler raises again in the lines above


def watch(pids: list[int], folder: Path) -> list[tuple[str, float | None]]:
    """Wait for the ranks, and kill those that don't end in time.

    Returns how each rank ended, and when by time.monotonic(), with None for a rank that was killed here.
    """
    ends: dict[int, tuple[str, float | None]] = {}
    deadline = time.monotonic() + START_LIMIT_S
    while len(ends) < len(pids):
        if (folder / "fault").exists():
            deadline = min(deadline, time.monotonic() + LIMIT_S)
        for pid in set(pids) - set(ends):
            if time.monotonic() > deadline:
                stopped = psutil.Process(pid).status() == psutil.STATUS_STOPPED
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                ends[pid] = "stopped" if stopped else "still running", None
                continue
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                ends[pid] = f"exit code {code}" if code >= 0 else signal.Signals(-code).name, time.monotonic()
        time.sleep(0.005)
    return [ends[pid] for pid in pids]


def meet(fault: str) -> dict:
    """Run three ranks with one fault, and return what it did to each rank."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ends = watch([forked(folder / f"words.{rank}", train, rank, fault, folder) for rank in range(RANKS)], folder)
        ranks = []
        for rank, (end, ended_s) in enumerate(ends):
            after_s = None
            if ended_s is not None and (folder / "fault").exists():
                after_s = ended_s - float((folder / "fault").read_text())
            words = (folder / f"words.{rank}").read_text(errors="replace").strip().splitlines()
            report = {"losses": [], "steps_s": [], "digest": ""}
            if (folder / f"report.{rank}").exists():
                report = json.loads((folder / f"report.{rank}").read_text())
            ranks.append({"end": end, "after_s": after_s, "words": words[-1] if words else "", **report})
    return {"fault": fault, "ranks": ranks}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with ProcessPoolExecutor(AT_ONCE, mp_context=multiprocessing.get_context("fork")) as pool:
        for met in pool.map(meet, sys.argv[1:]):
            print(json.dumps(met), flush=True)
