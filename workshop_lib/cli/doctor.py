"""Look at this machine: what works, what does not, and what to do about it. Takes a few seconds."""

import importlib.metadata
import json
import math
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import psutil

from workshop_lib.arguments import Parser
from workshop_lib.findings import Finding, as_data, show, worst
from workshop_lib.machine import cgroups, cores, installation, packages
from workshop_lib.machine.load import Meter, are_left
from workshop_lib.paths import IS_CHECKOUT, ROOT
from workshop_lib.ranks.launch import limits, processes, which_mpi
from workshop_lib.training.backends import EXTRAS

COMMAND_LIMIT_S = 10.0
REQUIRED = ("torch", "mpi4py", "ipyparallel", "jupyterlab", "ipywidgets", "matplotlib")
LEAST_MEMORY_BYTES = 3e9
LEAST_DISK_BYTES = 1e9


def doctor_arguments(parser: Parser) -> None:
    parser.runs(doctor)
    parser.add_argument("--json", action="store_true", help="Machine-readable output.")


def doctor(json: bool) -> int:
    """Look at this machine: what works, what does not, and what to do about it."""
    return main(json)


def judged(name: str, found: str, good: bool, remedy: str, otherwise: str = "look") -> Finding:
    """A Finding whose level is "ok" if `good`; if not, it has the level `otherwise` and this remedy."""
    return Finding("ok", name, found) if good else Finding(otherwise, name, found, remedy=remedy)


def examine() -> list[Finding]:
    """Findings on everything that decides whether what is installed here runs on this machine."""
    others = Meter()
    starts_ranks = IS_CHECKOUT or not packages.missing_for_notebooks()
    needed = [check_loopback(), check_limits()]
    return [
        check_python(),
        *(check_packages() if IS_CHECKOUT else check_library_alone()),
        *needed,
        *(check_mpi(worst(needed) != "wrong") if starts_ranks else []),
        check_cores(),
        check_memory(),
        check_disk(),
        check_gpus(),
        *([check_data()] if IS_CHECKOUT else []),
        check_others(others),
    ]


def main(as_json: bool = False) -> int:
    """Print the findings; return 1 if anything is wrong, else 0."""
    findings = examine()
    if as_json:
        print(json.dumps(as_data(findings), indent=2))
    else:
        show(findings)
    return int(worst(findings) == "wrong")


def check_python() -> Finding:
    found = f"{sys.version.split()[0]} in {sys.prefix}"
    remedy = f"use Python {installation.pythons_in_words()}: run `make setup`"
    return judged("Python", found, sys.version_info[:2] in installation.PYTHONS, remedy, "wrong")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_packages() -> list[Finding]:
    required = [check_package(name, "run `make setup`", "wrong") for name in REQUIRED]
    optional = [check_package(name, _why_missing(extra), "look") for name, extra in EXTRAS.items()]
    why = installation.read_notes(installation.CORE).get("torch")  # if the set-up chose the build
    build = [Finding("ok", "PyTorch's build", why)] if why else []
    return [*required, *build, *optional]


def check_library_alone() -> list[Finding]:
    """Findings on the packages beside a library that was installed without the workshop's notebooks."""
    missing = packages.missing_for_notebooks()
    found = f"{', '.join(missing)} not installed; examine, dryrun and predict do without"
    in_notebooks = judged(
        "ranks in notebooks", found if missing else "installed", not missing, packages.remedy("notebooks")
    )
    return [check_package("torch", packages.remedy("torch"), "look"), in_notebooks]


def _why_missing(extra: str) -> str:
    """Why an extra of the set-up is missing, or how to get it."""
    setting = " HOROVOD=" if extra == "horovod" else ""
    return installation.why_missing(extra) or f"{installation.NEEDED_BY[extra]}: run `make setup{setting}`"


def check_package(name: str, remedy: str, otherwise: str) -> Finding:
    """A finding on a package: its version. It only looks at files, because imports take seconds."""
    version = _version(name) or _version(f"{name}-cpu")
    return judged(name, version or "not installed", version is not None, remedy, otherwise)


def _run(command: list[str], environment: dict | None = None) -> subprocess.CompletedProcess:
    """Run a command for at most COMMAND_LIMIT_S. If it cannot run, the result has exit code 1 and the error's text."""
    set_id = uuid.uuid4().hex[:12]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            env=which_mpi.rank_environment(environment or {}) | {processes.VARIABLE: processes.mark(set_id)},
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        # Processes that the command started, such as ranks in their own process groups, would live on.
        processes.end(set_id)
        return subprocess.CompletedProcess(command, 1, "", str(error))


def check_mpi(ranks_can_start: bool = True) -> list[Finding]:
    """Findings on MPI, with a start of two ranks unless another finding says that they can't start."""
    try:
        command = which_mpi.mpiexec()
    except which_mpi.MPINotFound as error:
        return [Finding("wrong", "mpiexec", "none", remedy=str(error))]
    version = _run([*command, "--version"]).stdout.strip().partition("\n")[0].strip() or "unknown version"
    started_by = Finding("ok", "mpiexec", f"{' '.join(command)}: {version}")
    settings = ", ".join(f"{name}={value}" for name, value in sorted(which_mpi.environment().items()))
    found = [started_by, Finding("ok", "MPI settings", settings)]
    return [*found, check_two_ranks(command)] if ranks_can_start else found


def check_loopback() -> Finding:
    """A finding on whether programs on this host reach each other, as ranks and notebooks must."""
    trouble = limits.loopback_trouble()
    return judged("loopback", trouble or f"{limits.LOOPBACK} answers", not trouble, limits.LOOPBACK_REMEDY, "wrong")


def check_two_ranks(mpiexec: list[str]) -> Finding:
    """Run two ranks: nothing else shows whether mpiexec and mpi4py use the same MPI."""
    program = (
        "from mpi4py import MPI; c = MPI.COMM_WORLD; "
        "print(c.allreduce(1), MPI.Get_library_version().split(',')[0].strip(), sep='|')"
    )
    environment = which_mpi.environment() | {"PYTHONPATH": which_mpi.python_path()}
    ran = _run([*mpiexec, "-n", "2", sys.executable, "-P", "-c", program], environment)
    rows = [line.split("|") for line in ran.stdout.splitlines() if "|" in line]
    if ran.returncode or len(rows) != 2:
        if suspects := which_mpi.suspects():
            found = "they did not start with this environment's settings of MPI"
            return Finding("wrong", "two ranks", found, remedy=suspects)
        why = which_mpi.what_failed(ran.stderr.strip("\0 \n")) or f"exit code {ran.returncode}"
        return Finding(
            "wrong", "two ranks", why, remedy=f"{packages.remedy('notebooks')} again; on a cluster, load the MPI module"
        )
    sizes, (library, _) = zip(*rows, strict=True)
    if sizes != ("2", "2"):
        remedy = "mpiexec and mpi4py use different MPI libraries: on a cluster, run `make setup MPI=system`"
        return Finding("wrong", "two ranks", f"two worlds of size {sizes[0]}, with {library}", remedy=remedy)
    return Finding("ok", "two ranks", f"one world of size 2, with {library}")


def check_cores() -> Finding:
    usable = cores.usable_threads()
    found = f"{usable} usable of {os.cpu_count()} (affinity and cgroup)"
    if usable > cores.usable_cores():
        found += f": {cores.here()}"
    remedy = "two ranks will share one core: no speed-up can be seen"
    return judged("cores", found, cores.usable_cores() >= 2, remedy)


def check_others(meter: Meter) -> Finding:
    """A finding on the cores that other programs used while the doctor looked at everything else."""
    others = meter.others()
    enough = are_left(others, meter.usable, meter.usable, meter.total)
    remedy = "times measured now say little about scaling: close what computes; everything else works"
    return judged("other programs", f"using {others:.1f} of {meter.all}", enough, remedy)


def check_memory() -> Finding:
    available = min(psutil.virtual_memory().available, cgroups.available_bytes())
    remedy = "close other notebooks: a rank takes about 0.3 GB"
    return judged("memory", f"{available / 1e9:.1f} GB available", available >= LEAST_MEMORY_BYTES, remedy)


def check_limits() -> Finding:
    """A finding on the limits that two ranks run into, or on the first of all limits that is too low for them."""
    every = limits.of_ranks(2)
    low = next((limit for limit in every if limit.is_too_low), None)
    if low is not None:
        return Finding("wrong", "limits", f"two ranks do not start: {low.found}", remedy=low.remedy)
    set_here = ", ".join(str(limit) for limit in every if math.isfinite(limit.allowed))
    return Finding("ok", "limits", f"two ranks fit: {set_here}" if set_here else "none")


def check_disk() -> Finding:
    folder = ROOT if IS_CHECKOUT else Path.cwd()
    free = shutil.disk_usage(folder).free
    found = f"{free / 1e9:.1f} GB free in {folder}"
    remedy = "make room: records and checkpoints need it"
    return judged("disk", found, free >= LEAST_DISK_BYTES, remedy)


def check_gpus() -> Finding:
    if not shutil.which("nvidia-smi"):
        return Finding("ok", "GPUs", "none found; everything runs on the CPU")
    listed = _run(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"])
    if listed.returncode:
        return Finding("look", "GPUs", "nvidia-smi fails", remedy="the driver does not answer; the CPU is used")
    how = "set TORCH_INDEX and run `make setup` (see book/setup.md)" if IS_CHECKOUT else "install the one for this GPU"
    remedy = f"PyTorch is the CPU build: {how}"
    return judged(
        "GPUs", "; ".join(listed.stdout.strip().splitlines()), "+cpu" not in (_version("torch") or ""), remedy
    )


def check_data() -> Finding:
    from workshop_lib.training.data import mnist  # imports NumPy, which most commands start without

    try:
        train = mnist.load("train")
        test = mnist.load("test")
    except mnist.DataError as error:
        return Finding("wrong", "MNIST", "not usable", remedy=str(error))
    return Finding("ok", "MNIST", f"{train.total:,} + {test.total:,} images")
