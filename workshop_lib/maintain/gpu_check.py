"""`make gpu-check`: run on this host's GPUs what otherwise only runs on CPUs, and keep a record.

It needs Python, a PyTorch that sees the GPUs, numpy, psutil, rich, tqdm and python-hostlist, but no network, no MPI and
no set-up. What needs another package or more GPUs than there are is listed as not checked. PyTorch and modules that
need it are imported inside functions, so that a Python without these packages gets a sentence.
"""

import argparse
import datetime
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from workshop_lib.errors import InputError
from workshop_lib.paths import BUILD, ROOT

SCRIPTS = ROOT / "notebooks" / "scripts"
LIMIT_S = 180.0  # for one command
END_LIMIT_S = 10.0  # for the output of a command whose processes were ended
LEAST_ACCURACY = 0.9  # one epoch on MNIST reaches 0.97
LINES_SHOWN = 12
# The ranks of one host need no name service, which a compute node may lack.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
# What is imported, by what pip calls it.
NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "psutil": "psutil",
    "rich": "rich",
    "tqdm": "tqdm",
    "hostlist": "python-hostlist",
}
WITH_TORCHRUN = ("ddp", "fsdp", "deepspeed")
WITH_MPI = ("mpi", "horovod")
PACKAGES = {"deepspeed": ("deepspeed",), "mpi": ("mpi4py", "ipyparallel"), "horovod": ("horovod", "mpi4py")}
MNIST_SCRIPTS = ("ddp", "fsdp2", "diloco", "tensor_parallel", "pipeline")
TEXT_SCRIPTS = ("context_parallel", "mesh", "trainer")


class GpuCheckFailed(Exception):
    """A check that did not come out as it should; the message says what happened."""


class GpuCheckRow(TypedDict):
    """One check: "ok", "wrong" or "not checked", and what was seen."""

    check: str
    level: str
    seen: str
    seconds: float
    record: Any


class GpuCheck(NamedTuple):
    """A check, or the reason why it cannot be made here. `run` returns what was seen, in words and as data."""

    name: str
    run: Callable[[], tuple[str, Any]]
    why_not: str = ""


def run(command: list[str], folder: Path, accept: tuple[int, ...] = (0,)) -> str:
    """The output of a command. Raises GpuCheckFailed with its last lines if it takes longer than LIMIT_S or fails.

    All processes of a command that takes too long are ended: torchrun gives its ranks sessions of their own, so they
    are found by a mark in their environment. accept: the exit codes of a command that did not fail.
    """
    from workshop_lib.ranks import processes

    set_id = uuid.uuid4().hex[:12]
    environment = os.environ | {"PYTHONPATH": os.fspath(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment | {processes.VARIABLE: processes.mark(set_id)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        processes.end(set_id)
        try:
            output, _ = process.communicate(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            output = "(a process that could not be ended still holds its output)"
        raise GpuCheckFailed(f"it was ended after {LIMIT_S:.0f} s; its last lines:\n{_end_of(output)}") from None
    if process.returncode not in accept:
        raise GpuCheckFailed(f"exit code {process.returncode}; its last lines:\n{_end_of(output)}")
    return output


def _end_of(output: str) -> str:
    return "\n".join(output.splitlines()[-LINES_SHOWN:])


def look_at_devices(n: int, device: str) -> tuple[str, Any]:
    """What PyTorch sees: the devices, the CUDA version of its build and NCCL's."""
    import torch

    if device == "cpu":
        return f"PyTorch {torch.__version__} on CPUs, to try this checklist", {"torch": torch.__version__}
    module = torch.get_device_module(device)
    names = [module.get_device_name(number) for number in range(n)]
    seen: dict[str, Any] = {"devices": names, "torch": torch.__version__}
    listed = f"{n} × {', '.join(dict.fromkeys(names))}; PyTorch {torch.__version__}"
    if device == "cuda":
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        seen |= {"cuda": torch.version.cuda, "nccl": nccl}
        listed += f", CUDA {torch.version.cuda}, NCCL {nccl}"
    return listed, seen


def train(backend: str, n: int, device: str, folder: Path, *options: str) -> dict:
    """The record of an epoch on MNIST. Raises GpuCheckFailed if it did not learn, or not on this device."""
    out = folder / f"{backend}-{n}.jsonl"
    words = ["-m", "workshop_lib", "train", "--backend", backend, "--device", device, "--epochs", "1"]
    if backend in WITH_MPI:
        command = [sys.executable, *words, "--ranks", str(n)]
    else:
        command = [*TORCHRUN, "--nproc-per-node", str(n), *words]
    run([*command, "--out", str(out), *options], folder)
    record = json.loads(out.read_text().splitlines()[-1])
    accuracy = record["epochs"][-1]["test_accuracy"]
    if accuracy < LEAST_ACCURACY:
        raise GpuCheckFailed(
            f"the test accuracy is {accuracy:.1%} after an epoch; it should be above {LEAST_ACCURACY:.0%}"
        )
    if record["where"]["device"] != device:
        raise GpuCheckFailed(f"it ran on {record['where']['device']}, not on {device}")
    from workshop_lib.machine.world import GPU_COLLECTIVES

    carrier = record["what"]["comm"]
    expected = GPU_COLLECTIVES.get(device)
    if expected and backend in ("ddp", "fsdp") and carrier != expected:
        raise GpuCheckFailed(f"{carrier} carried its messages, not {expected}")
    return record


def try_backend(backend: str, n: int, device: str, folder: Path) -> tuple[str, Any]:
    record = train(backend, n, device, folder)
    last = record["epochs"][-1]
    carrier = f", messages by {record['what']['comm']}" if record["what"]["comm"] else ""
    return f"test accuracy {last['test_accuracy']:.2%}, {last['samples_per_s']:,.0f} samples/s{carrier}", record


def preflight(n: int, device: str, folder: Path) -> tuple[str, Any]:
    """`workshop preflight` on these devices. Raises GpuCheckFailed if one of its lines says "wrong"."""
    command = [sys.executable, "-m", "workshop_lib", "preflight", "--ranks", str(n), "--device", device, "--json"]
    output = run(command, folder, accept=(0, 2, 3))  # whatever its lines say
    result, _ = json.JSONDecoder().raw_decode(output[output.index("{") :])  # warnings may come before it
    worth = [line for line in result["lines"] if line["level"] != "ok"]
    seen = f"{len(result['lines']) - len(worth)} of {len(result['lines'])} lines ok"
    for line in worth:
        seen += f"\n  {line['level']}: {line['check']}: {line['seen']}"
    if any(line["level"] == "wrong" for line in worth):
        raise GpuCheckFailed(seen)
    return seen, result


def try_script(name: str, n: int, folder: Path) -> tuple[str, Any]:
    """Run a script of notebooks/scripts to its end, and show its last line."""
    options = ["--epochs", "1"] if name in MNIST_SCRIPTS else []
    if name != "mesh":
        options += ["--out", str(folder / f"{name}.pt")]
    output = run([*TORCHRUN, "--nproc-per-node", str(n), str(SCRIPTS / f"{name}.py"), *options], folder)
    last = output.rstrip().rpartition("\n")[2]
    if re.search(r"\bnan\b", last, re.IGNORECASE):
        raise GpuCheckFailed(f"its last line says {last}")
    return last, None


def memory(n: int, device: str, folder: Path) -> tuple[str, Any]:
    """Notebook 06: FSDP keeps 1/n of the parameters and of Adam's state on each rank, and DDP keeps all of them."""
    kept = {}
    for backend in ("ddp", "fsdp"):
        kept[backend] = train(backend, n, device, folder, "--optimizer", "adam", "--lr", "0.001")["memory"]
    lines = []
    for kind in ("parameters_bytes", "optimizer_bytes"):
        whole = max(kept["ddp"][kind])
        share = max(kept["fsdp"][kind])
        # Dimensions that n doesn't divide are padded, and biases are small.
        if not whole / n <= share <= 1.2 * whole / n:
            raise GpuCheckFailed(f"{kind}: FSDP keeps {share} of DDP's {whole} on {n} ranks, where 1/{n} is right")
        lines.append(f"{kind.partition('_')[0]} {share / whole:.3f} of DDP's")
    return f"FSDP keeps {' and '.join(lines)} on each of {n} ranks", kept


def curve(n: int, device: str, folder: Path) -> tuple[str, Any]:
    """Notebook 08: samples per second of DDP on 1, 2, 4, ... devices."""
    counts = [2**k for k in range(n.bit_length()) if 2**k <= n]
    speeds = {count: train("ddp", count, device, folder)["epochs"][-1]["samples_per_s"] for count in counts}
    seen = ", ".join(f"{count}: {speed:,.0f} ({speed / speeds[1] / count:.0%})" for count, speed in speeds.items())
    return f"samples/s (efficiency) by devices: {seen}", speeds


def checks(n: int, device: str, folder: Path) -> Iterable[GpuCheck]:
    yield GpuCheck("devices", partial(look_at_devices, n, device))
    for backend in WITH_TORCHRUN + WITH_MPI:
        yield GpuCheck(
            f"backend {backend}", partial(try_backend, backend, n, device, folder), _why_not(backend, device)
        )
    yield GpuCheck("preflight", partial(preflight, n, device, folder), _missing("mpi"))
    for name in MNIST_SCRIPTS + TEXT_SCRIPTS:
        yield GpuCheck(f"script {name}.py", partial(try_script, name, n, folder), "" if n > 1 else ALONE)
    yield GpuCheck("memory (06)", partial(memory, n, device, folder), "" if n > 1 else ALONE)
    yield GpuCheck("scaling curve (08)", partial(curve, n, device, folder), "" if n > 1 else ALONE)


ALONE = "it needs two GPUs, and this host shows one"


def _missing(backend: str) -> str:
    absent = [name for name in PACKAGES.get(backend, ()) if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else ""


def _why_not(backend: str, device: str) -> str:
    from workshop_lib.training.options import ON_XPU

    if device == "xpu" and backend not in ON_XPU:
        return "it doesn't train on Intel's GPUs"
    return _missing(backend)


def require_packages() -> None:
    """Raise InputError if this Python lacks a package that every check needs."""
    absent = [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]
    if absent:
        raise InputError(
            f"{sys.executable} has no {', '.join(absent)}. Install what is missing there, or name another Python: "
            "make gpu-check PYTHON=/path/to/python"
        )


def devices_here(device: str, n: int | None) -> tuple[str, int]:
    """Which kind of device to use, and how many. Raises InputError if there are none, or fewer than n.

    device: "cpu", "cuda", "xpu", or "auto" for the GPUs that there are.
    """
    import torch

    from workshop_lib.machine import world

    if device == "cpu":
        return device, n or 2
    kind = world.gpu_kind(device)
    module = torch.get_device_module(kind)
    there = module.device_count() if module.is_available() else 0
    if there == 0:
        raise InputError(
            f"PyTorch {torch.__version__} sees no GPU here. Install its build for this GPU, or try --device cpu."
        )
    if n is not None and n > there:
        raise InputError(f"--devices {n}: PyTorch sees {there} here.")
    return kind, n or there


def check_all(n: int, device: str, out: Path) -> list[GpuCheckRow]:
    """Make every check and print a line for each; add the rows to the file `out`, each as soon as it is known."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, out.open("a") as file:
        for check in checks(n, device, Path(folder)):
            row = _row(check)
            rows.append(row)
            print(f"{row['level']:<12} {row['check']:<26} {row['seconds']:4.0f} s  {row['seen']}", flush=True)
            date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            file.write(json.dumps({"date": date, "n": n, **row}) + "\n")
            file.flush()
    return rows


def _row(check: GpuCheck) -> GpuCheckRow:
    if check.why_not:
        return GpuCheckRow(check=check.name, level="not checked", seen=check.why_not, seconds=0.0, record=None)
    began_s = time.monotonic()
    try:
        seen, record = check.run()
        level = "ok"
    except GpuCheckFailed as error:
        seen, record, level = str(error), None, "wrong"
    return GpuCheckRow(check=check.name, level=level, seen=seen, seconds=time.monotonic() - began_s, record=record)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu-check", description="Try everything on this host's GPUs.")
    parser.add_argument(
        "--device", choices=("auto", "cuda", "xpu", "cpu"), default="auto", help="cpu tries the checklist"
    )
    parser.add_argument("--devices", type=int, metavar="N", help="how many; by default, all that PyTorch sees")
    parser.add_argument("--out", type=Path, default=BUILD / "gpu-check.jsonl", help="where the record goes")
    arguments = parser.parse_args()
    try:
        require_packages()
        device, n = devices_here(arguments.device, arguments.devices)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        rows = check_all(n, device, arguments.out)
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    wrong = sum(row["level"] == "wrong" for row in rows)
    skipped = sum(row["level"] == "not checked" for row in rows)
    print(f"{len(rows) - wrong - skipped} ok, {wrong} wrong, {skipped} not checked; the record is in {arguments.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
