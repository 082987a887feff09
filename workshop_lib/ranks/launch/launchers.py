"""The exact command that starts ranks on an allocation, for each launcher.

Ranks fill one node after the other. Each rank sees all GPUs of its node and takes the one whose number is its local
rank (machine/world.py), so the commands do not mention GPUs.
"""

import fnmatch
import functools
import math
import os
import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from . import which_mpi
from .allocation import Allocation, is_here

# Options of each launcher: those that are always given, and those that bind each rank to its own cores, to its own
# hardware threads or not at all. A launcher without words for hardware threads gets those for cores. Open MPI reads the
# binding from the environment (which_mpi.environment).
# Sources: the manual pages of mpiexec (Open MPI 5, Cray PALS 1.3), srun (22.05).
TABLE = {
    "openmpi": ("-n {n} --host {slots}", {"none": "", "core": ""}),
    "pals": ("-n {n} --ppn {per_node} --depth {threads}", {"none": "--cpu-bind none", "core": "--cpu-bind depth"}),
    "srun": (
        # A job step takes all resources of its nodes. Without --overlap, the next step would wait for them. And without
        # --export, the ranks of a job submitted with --export=NONE would get none of their settings.
        "--overlap --export=ALL --kill-on-bad-exit=1 -n {n} --nodes={nodes} "
        "--ntasks-per-node={per_node} --nodelist={hosts} --cpus-per-task={threads}",
        {"none": "--cpu-bind=none", "core": "--cpu-bind=cores", which_mpi.HARDWARE_THREAD: "--cpu-bind=threads"},
    ),
    "unknown": ("-n {n}", {"none": "", "core": ""}),
}

# Open MPI passes only variables in its options on to other nodes: those that are set for ranks, and some of the user's.
# It warns about names that aren't set, so programs that aren't engines get fewer.
OWN_VARIABLES = ("PYTHONPATH", "WORKSHOP_RANKS")
ENGINE_VARIABLES = (*OWN_VARIABLES, "IPYTHONDIR", "WORKSHOP_LAUNCHER", "WORKSHOP_CWD")
# The patterns of the user's; submissions/common/open_mpi.sh reads the same file.
PASSED_ON = tuple(Path(__file__).with_name("passed_on.txt").read_text().split())

# Without this limit, ssh waits two minutes for a host that doesn't answer.
SSH = {"PRTE_MCA_plm_ssh_agent": "ssh -oConnectTimeout=10"}


@dataclass(frozen=True)
class Launch:
    """How ranks are started: the words before the ranks' own command, and settings for their environment."""

    command: list[str]
    settings: dict[str, str]
    one_host: bool  # whether all ranks are on this host
    elsewhere: bool  # whether anything outside this host must reach the controller
    engine_options: list[str]


def plan(
    n: int, threads: int, bind: str, allocation: Allocation | None, own: tuple[str, ...] = ENGINE_VARIABLES
) -> Launch:
    """How to start `n` ranks: on the allocation, or on this host if there is none.

    own: the names of variables that are set for these ranks. WORKSHOP_MPIEXEC is used as it is; only the number of
    ranks is added. Raises MPINotFound if there is no mpiexec, and InputError for a bad `threads` or `bind`.
    """
    words = which_mpi.mpiexec(allocation.scheduler if allocation else None)
    own_words = bool(os.environ.get("WORKSHOP_MPIEXEC"))  # a command of the user's may reach other hosts
    one_host = not own_words and (allocation is None or not allocation.elsewhere)
    bind = which_mpi.binding(bind, 0 if own_words else _ranks_here(n, allocation), threads)
    settings = which_mpi.environment(threads, bind, one_host)
    if allocation and allocation.scheduler == "slurm":
        settings["SLURM_EXPORT_ENV"] = "ALL"  # for the srun that Open MPI or the user's own command calls
    if allocation is None or own_words:
        hosts = allocation.hosts if allocation else ()
        return Launch([*words, "-n", str(n)], settings, one_host, own_words, _way_back(hosts))
    kind = flavor(tuple(words))
    per_node = allocation.ranks_on_a_node(n)
    chosen = command(kind, words, n, per_node, threads, bind, allocation.hosts)
    if kind == "openmpi":
        # The command names the hosts, so Open MPI does not have to understand the scheduler's variables, which may even
        # be wrong. But if Open MPI reaches the hosts through Slurm, it needs Slurm's list: without the list, it takes
        # every host for this one.
        ours = {"PRTE_MCA_ras": "^pbs,slurm", "PRTE_MCA_plm": "^slurm"}
        settings |= {"PRTE_MCA_ras": "^pbs"} if allocation.scheduler == "slurm" else ours
        if shutil.which("ssh") and not any(re.search("plm_(ssh|rsh)_agent", name) for name in os.environ):
            settings |= SSH
        names = [
            *(name for name in settings if name.startswith("OMP_")),
            *own,
            *sorted(name for name in os.environ if any(fnmatch.fnmatchcase(name, pattern) for pattern in PASSED_ON)),
        ]
        chosen += [word for name in names for word in ("-x", name)]
    # Notebooks on a login node attach to a scheduler's job, even if the job has only one node.
    return Launch(chosen, settings, one_host, True, _way_back(allocation.hosts))


def _ranks_here(n: int, allocation: Allocation | None) -> int:
    """How many of `n` ranks this host gets."""
    if allocation is None:
        return n
    return min(n, allocation.ranks_on_a_node(n)) if any(map(is_here, allocation.hosts)) else 0


def _way_back(hosts: tuple[str, ...]) -> list[str]:
    """Options that tell engines this host's address on their network: its name may resolve to a different address."""
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
    """The words that start `n` ranks, `per_node` on each host, on only as many of the first hosts as they need."""
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
    return [*words, *(word.format(**values) for word in f"{always} {binding.get(bind, binding['core'])}".split())]


@functools.lru_cache
def flavor(words: tuple[str, ...]) -> str:
    """Which launcher this command is (a key of TABLE), judged by its name and the version that it prints."""
    if Path(words[0]).name == "srun":
        return "srun"
    version = which_mpi.output_of(*words, "--version")
    for mark, kind in (("Open MPI", "openmpi"), ("OpenRTE", "openmpi"), ("PALS", "pals")):
        if mark.lower() in version.lower():
            return kind
    return "pals" if "/pals/" in str(Path(words[0]).resolve()) else "unknown"
