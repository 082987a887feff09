"""The exact command that starts ranks on an allocation, for each launcher there is.

Ranks fill one node after the other. A rank takes the GPU numbered by its place on its node
(training/world.py), so the launchers are told nothing of GPUs: each rank sees all of its node.
"""

import functools
import math
import os
import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from . import mpi
from .allocation import Allocation, is_here

# What a launcher is told: always, and to bind each rank to cores of its own or not at all.
# Sources: the manual pages of mpiexec (Open MPI 5, MPICH 4.2, Cray PALS 1.3), aprun (ALPS), srun (22.05).
TABLE = {
    "openmpi": (
        "-n {n} --host {slots}",
        {"none": "--map-by slot:oversubscribe --bind-to none", "core": "--map-by slot:PE={threads} --bind-to core"},
    ),
    "hydra": ("-n {n} -ppn {per_node} -hosts {hosts}", {"none": "-bind-to none", "core": "-bind-to core:{threads}"}),
    "pals": ("-n {n} --ppn {per_node} --depth {threads}", {"none": "--cpu-bind none", "core": "--cpu-bind depth"}),
    "aprun": ("-n {n} -N {per_node} -d {threads} -j 1", {"none": "-cc none", "core": "-cc depth"}),
    "srun": (
        # A step takes all resources of its nodes, and by default the next one would wait for them.
        "--overlap --kill-on-bad-exit=1 -n {n} --nodes={nodes} "
        "--ntasks-per-node={per_node} --nodelist={hosts} --cpus-per-task={threads}",
        {"none": "--cpu-bind=none", "core": "--cpu-bind=cores"},
    ),
    "unknown": ("-n {n}", {"none": "", "core": ""}),
}

# Open MPI takes to other nodes only the variables that it is told: those set for ranks, and the user's.
OWN_VARIABLES = ("PYTHONPATH", "IPYTHONDIR", "WORKSHOP_RANKS", "WORKSHOP_LAUNCHER", "WORKSHOP_CWD")
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "WORKSHOP_MNIST", "WORKSHOP_STAGE_DIR", "WORKSHOP_GLOO_TIMEOUT_S", "TMPDIR")

# Without a limit, ssh waits for two minutes for a host that doesn't answer.
SSH = {"PRTE_MCA_plm_ssh_agent": "ssh -oConnectTimeout=10"}


@dataclass(frozen=True)
class Launch:
    """How ranks are started: the words before their command, and settings for their environment."""

    command: list[str]
    settings: dict[str, str]
    elsewhere: bool  # whether anything outside this host must reach the controller
    engine_options: list[str]


def plan(n: int, threads: int, bind: str, allocation: Allocation | None) -> Launch:
    """How to start `n` ranks: on the allocation, or here without one.

    WORKSHOP_MPIEXEC is taken as it is, with the number of ranks alone. Raises MPINotFound or InputError,
    as mpi does.
    """
    words = mpi.mpiexec(allocation.scheduler if allocation else None)
    own_words = bool(os.environ.get("WORKSHOP_MPIEXEC"))  # which may reach other hosts
    one_host = not own_words and (allocation is None or not allocation.elsewhere)
    settings = mpi.environment(threads, bind, one_host)
    if allocation is None or own_words:
        hosts = allocation.hosts if allocation else ()
        return Launch([*words, "-n", str(n)], settings, own_words, _way_back(hosts))
    kind = flavour(tuple(words))
    per_node = max(allocation.ranks_per_node(), math.ceil(n / len(allocation.hosts)))
    chosen = command(kind, words, n, per_node, threads, bind, allocation.hosts)
    if kind == "openmpi":
        # The hosts are said, so that a scheduler's variables need not be understood, or even be right. But
        # Slurm's own way of reaching them wants Slurm's list of them: without, it takes all for this host.
        ours = {"PRTE_MCA_ras": "^pbs,slurm", "PRTE_MCA_plm": "^slurm"}
        settings |= {"PRTE_MCA_ras": "^pbs"} if allocation.scheduler == "slurm" else ours
        if shutil.which("ssh") and not any(re.search("plm_(ssh|rsh)_agent", name) for name in os.environ):
            settings |= SSH
        names = [
            *(name for name in settings if name.startswith("OMP_")),
            *OWN_VARIABLES,
            *(name for name in PASSED_ON if name in os.environ),
        ]
        chosen += [word for name in names for word in ("-x", name)]
    # A scheduler's job is attached to from a login node, also when it has one node alone.
    elsewhere = allocation.elsewhere or allocation.job_id is not None
    return Launch(chosen, settings, elsewhere, _way_back(allocation.hosts))


def _way_back(hosts: tuple[str, ...]) -> list[str]:
    """Tell engines this host's address on the network that leads to them: names may resolve to another."""
    other = next((host for host in hosts if not is_here(host)), None)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))  # sends nothing
            return [f"--IPEngine.location={probe.getsockname()[0]}"]
    except (OSError, TypeError):
        return []  # no other host, or a name that only the scheduler knows


def command(
    kind: str, words: list[str], n: int, per_node: int, threads: int, bind: str, hosts: tuple[str, ...]
) -> list[str]:
    """The words that start `n` ranks, `per_node` on each of the first hosts that they need."""
    hosts = hosts[: math.ceil(n / per_node)]
    always, binding = TABLE[kind]
    values = {
        "n": n,
        "per_node": per_node,
        "threads": threads,
        "nodes": len(hosts),
        "hosts": ",".join(hosts),
        "slots": ",".join(f"{host}:{per_node}" for host in hosts),
    }
    return [*words, *(word.format(**values) for word in f"{always} {binding[bind]}".split())]


@functools.lru_cache
def flavour(words: tuple[str, ...]) -> str:
    """Whose mpiexec this is, from its name and what it says of its version: a key of TABLE."""
    name = Path(words[0]).name
    if name in ("srun", "aprun"):
        return name
    version = mpi.output_of(*words, "--version")
    for mark, kind in (("Open MPI", "openmpi"), ("OpenRTE", "openmpi"), ("PALS", "pals"), ("HYDRA", "hydra")):
        if mark.lower() in version.lower():
            return kind
    if "Intel(R) MPI" in version:
        return "hydra"
    return "pals" if "/pals/" in str(Path(words[0]).resolve()) else "unknown"
