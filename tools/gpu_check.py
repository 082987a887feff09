"""`make gpu-check`: train with every backend and run the scripts to take home on this host's GPUs, and keep a record.

It needs Python, a PyTorch that sees the GPUs, numpy, psutil, rich, tqdm and python-hostlist, but no network, no MPI and
no set-up. What needs another package or a second GPU is listed as not checked. Modules that need PyTorch are imported
inside functions, so that a Python without it gets a sentence.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workshop_lib.errors import InputError
from workshop_lib.paths import BUILD, ROOT, SCRIPTS

LIMIT_S = 180.0  # for one command
END_LIMIT_S = 10.0  # for the output of a command whose processes were ended
LEAST_ACCURACY = 0.9  # one epoch on MNIST reaches 0.97
LINES_SHOWN = 12
# The ranks of one host need no name service, which a compute node may lack.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
NEEDED = ("torch", "numpy", "psutil", "rich", "tqdm", "hostlist")  # the last one is pip's python-hostlist
WITH_MPI = ("mpi", "horovod")
PACKAGES = {
    "deepspeed": ("deepspeed",),
    "mpi": ("mpi4py", "ipyparallel", "cloudpickle"),
    "horovod": ("horovod", "mpi4py"),
}
MNIST_SCRIPTS = ("ddp", "fsdp2", "diloco", "tensor_parallel", "pipeline")
FOR_TWO = ("pipeline",)  # with one rank, it has no second stage
TEXT_SCRIPTS = ("context_parallel", "mesh", "trainer")


def run(command: list[str], folder: Path) -> tuple[str, str]:
    """(what is wrong, output) of a command; nothing is wrong if it ended with exit code 0 within LIMIT_S.

    All processes of a command that takes too long are ended: torchrun gives its ranks sessions of their own, so they
    are found by a mark in their environment.
    """
    from workshop_lib.ranks.launch import processes

    set_id = processes.new_set_id()
    environment = os.environ | {"PYTHONPATH": os.fspath(ROOT), "OMP_NUM_THREADS": "1"}
    environment[processes.VARIABLE] = processes.mark(set_id)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=folder, env=environment, **pipes)
    wrong = ""
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        wrong = f"it was ended after {LIMIT_S:.0f} s; "
        processes.end(set_id)
        output = ""
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that waits for its GPU can't be ended
            output, _ = process.communicate(timeout=END_LIMIT_S)
    if process.returncode and not wrong:
        wrong = f"exit code {process.returncode}; "
    if wrong:
        wrong += "its last lines:\n" + "\n".join(output.splitlines()[-LINES_SHOWN:])
    return wrong, output


def train(backend: str, n: int, device: str, folder: Path) -> tuple[str, str, Any]:
    """(what is wrong, what was seen, the record) of an epoch on MNIST."""
    from workshop_lib.machine.world import GPU_COLLECTIVES

    out = folder / f"{backend}.jsonl"
    words = [
        "-m",
        "workshop_lib",
        "train",
        "--backend",
        backend,
        "--device",
        device,
        "--epochs",
        "1",
        "--out",
        str(out),
    ]
    ranks = [sys.executable, *words, "--ranks", str(n)]
    wrong, _ = run(ranks if backend in WITH_MPI else [*TORCHRUN, "--nproc-per-node", str(n), *words], folder)
    if wrong:
        return wrong, "", None
    record = json.loads(out.read_text())
    last, where, carrier = record["epochs"][-1], record["where"]["device"], record["what"]["comm"]
    expected = GPU_COLLECTIVES.get(device, carrier) if backend in ("ddp", "fsdp") else carrier
    if last["test_accuracy"] < LEAST_ACCURACY:
        wrong = f"the test accuracy is {last['test_accuracy']:.1%} after an epoch"
    if where != device:
        wrong = f"it ran on {where}, not on {device}"
    if carrier != expected:
        wrong = f"{carrier} carried its messages, not {expected}"
    return wrong, f"test accuracy {last['test_accuracy']:.2%}, {last['samples_per_s']:,.0f} samples/s", record


def try_script(name: str, n: int, folder: Path) -> tuple[str, str]:
    """(what is wrong, its last line) of a script of notebooks/scripts."""
    options = ["--epochs", "1"] if name in MNIST_SCRIPTS else []
    if name != "mesh":
        options += ["--out", str(folder / f"{name}.pt")]
    wrong, output = run([*TORCHRUN, "--nproc-per-node", str(n), str(SCRIPTS / f"{name}.py"), *options], folder)
    return wrong, output.rstrip().rpartition("\n")[2]


def why_not(backend: str, device: str) -> str:
    """Why a backend can't be tried here; empty if it can."""
    from workshop_lib.training.options import ON_XPU

    if device == "xpu" and backend not in ON_XPU:
        return "it doesn't train on Intel's GPUs"
    absent = [name for name in PACKAGES.get(backend, ()) if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else ""


def checks(n: int, device: str, folder: Path) -> Iterator[tuple[str, str, str, Any]]:
    """(name, "ok", "wrong" or "not checked", what was seen, the record) of each check, as soon as it has ended."""
    for backend in ("ddp", "fsdp", "deepspeed", *WITH_MPI):
        if reason := why_not(backend, device):
            yield f"backend {backend}", "not checked", reason, None
            continue
        wrong, seen, record = train(backend, n, device, folder)
        yield f"backend {backend}", "wrong" if wrong else "ok", wrong or seen, record
    for name in MNIST_SCRIPTS + TEXT_SCRIPTS:
        if n == 1 and name in FOR_TWO:
            yield f"script {name}.py", "not checked", "it needs two GPUs, and this host shows one", None
            continue
        wrong, seen = try_script(name, n, folder)
        yield f"script {name}.py", "wrong" if wrong else "ok", wrong or seen, None


def devices_here(device: str) -> tuple[str, int]:
    """Which kind of device to use, and how many there are. Raises InputError where PyTorch is missing or sees none.

    device: "cpu", "cuda", "xpu", or "auto" for the GPUs that there are.
    """
    if absent := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise InputError(
            f"{sys.executable} has no {', '.join(absent)}. Install what is missing there, or name another Python: "
            "make gpu-check PYTHON=/path/to/python"
        )
    import torch

    from workshop_lib.machine import world

    if device == "cpu":
        return device, 2
    kind = world.gpu_kind(device)
    module = torch.get_device_module(kind)
    if not module.is_available():
        raise InputError(f"PyTorch {torch.__version__} sees no GPU here. Install its build for this GPU.")
    return kind, module.device_count()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu-check", description="Try everything on this host's GPUs.")
    parser.add_argument("--device", choices=("auto", "cuda", "xpu", "cpu"), default="auto", help="cpu tries the list")
    parser.add_argument("--out", type=Path, default=BUILD / "gpu-check.jsonl", help="where the record goes")
    arguments = parser.parse_args()
    levels = []
    try:
        device, n = devices_here(arguments.device)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, arguments.out.open("a") as file:
            for name, level, seen, record in checks(n, device, Path(folder)):
                took_s = time.monotonic() - began_s
                began_s = time.monotonic()
                print(f"{level:<12} {name:<26} {took_s:4.0f} s  {seen}", flush=True)
                row = {"check": name, "level": level, "seen": seen, "devices": n, "device": device, "record": record}
                file.write(json.dumps(row) + "\n")
                file.flush()
                levels.append(level)
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(", ".join(f"{levels.count(level)} {level}" for level in ("ok", "wrong", "not checked")), arguments.out)
    return 1 if "wrong" in levels else 0


if __name__ == "__main__":
    sys.exit(main())
