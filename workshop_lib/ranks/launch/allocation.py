"""The nodes that a scheduler gave this job, read from the variables and files that the scheduler provides."""

import math
import os
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workshop_lib.ranks.faults.rank_errors import RankError

RANKS_PER_NODE = "WORKSHOP_RANKS_PER_NODE"
# The variables with which each scheduler describes a job. The variable of the job's id comes first.
VARIABLES = {"slurm": ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"), "pbs": ("PBS_JOBID", "PBS_NODEFILE")}


@dataclass(frozen=True)
class Allocation:
    """Hosts in the scheduler's order, and what the scheduler says about them; None where it says nothing.

    scheduler: "slurm" or "pbs". tasks_per_node: ranks per node that the job asked for; the largest number if
    nodes differ. cores_per_task: threads per rank. tasks: ranks on all nodes together.
    """

    scheduler: str
    job_id: str
    hosts: tuple[str, ...]
    tasks_per_node: int | None = None
    gpus_per_node: int | None = None
    cores_per_task: int | None = None
    tasks: int | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether a host other than this one belongs to the allocation."""
        return any(not is_here(host) for host in self.hosts)

    def ranks_per_node(self, environ: Mapping[str, str] = os.environ) -> int:
        """Ranks per node: WORKSHOP_RANKS_PER_NODE; else one per GPU; else as many as the job asked for; else one.

        Raises RankError if WORKSHOP_RANKS_PER_NODE is not a whole number of at least 1.
        """
        if text := environ.get(RANKS_PER_NODE):
            return _whole(RANKS_PER_NODE, text)
        return self.gpus_per_node or self.tasks_per_node or 1

    def ranks_on_a_node(self, n: int) -> int:
        """How many of `n` ranks a node gets, if they fill one node after the other and all have to fit."""
        return max(self.ranks_per_node(), math.ceil(n / len(self.hosts)))

    def ranks(self, environ: Mapping[str, str] = os.environ) -> int:
        """The number of ranks that fill the allocation."""
        per_node = self.ranks_per_node(environ)
        if self.tasks is not None and per_node == self.tasks_per_node:
            return self.tasks  # counted by the scheduler, because nodes may differ
        return per_node * len(self.hosts)


def find(environ: Mapping[str, str] = os.environ) -> Allocation | None:
    """The allocation that this process runs in; None outside of any job.

    Slurm is asked first, then PBS. Raises RankError naming a node file that is missing or empty, or a value
    that cannot be read.
    """
    if environ.get("SLURM_JOB_ID"):
        return _from_slurm(environ)
    if environ.get("PBS_JOBID"):
        return _from_pbs(environ)
    return None


def hint(job: Allocation | None, environ: Mapping[str, str] = os.environ) -> str:
    """A line to add when ranks did not start: which variables name the job's other hosts; empty without such hosts."""
    if job is None or not job.elsewhere:
        return ""
    names = [name for name in VARIABLES[job.scheduler] if environ.get(name)]
    origin = f"The environment describes job {job.job_id} on {job.hosts[0]} ({', '.join(names)})"
    remedy = f"unset {' '.join(names)} and start again: the ranks then run on this machine."
    return f"\n{origin}. If that's left over, {remedy}"


def is_here(host: str) -> bool:
    """Whether a host name, with or without its domain, is the name of this machine."""
    return host.split(".")[0] in (socket.gethostname().split(".")[0], "localhost") or host == "127.0.0.1"


def expand(nodes: str) -> list[str]:
    """Expand Slurm's short form of host names: "nid[001-003,007],x1" -> nid001, nid002, nid003, nid007, x1.

    Raises RankError if `nodes` cannot be read or names no node.
    """
    import hostlist  # only jobs of Slurm need it

    try:
        if names := hostlist.expand_hostlist(nodes):
            return names
    except hostlist.BadHostlist:
        pass
    raise RankError(f"The node list {nodes!r} names no nodes as Slurm does, as in nid[001-003,007].")


def _from_slurm(environ: Mapping[str, str]) -> Allocation:
    nodes = environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise RankError("SLURM_JOB_ID is set but SLURM_JOB_NODELIST is not: start this inside the job.")
    hosts = tuple(expand(nodes))
    ntasks = environ.get("SLURM_NTASKS")
    total = _whole("SLURM_NTASKS", ntasks) if ntasks else None
    if total is not None and total < len(hosts):
        total = None  # the count of a job step
    gpus = environ.get("SLURM_GPUS_ON_NODE") or environ.get("SLURM_GPUS_PER_NODE", "")  # "4" or "a100:4"
    per_node = _number(environ.get("SLURM_NTASKS_PER_NODE"))
    if per_node is None and total is not None:
        per_node = math.ceil(total / len(hosts))
    return Allocation(
        "slurm",
        environ["SLURM_JOB_ID"],
        hosts,
        tasks_per_node=per_node,
        gpus_per_node=_number(gpus.rpartition(":")[2]),
        cores_per_task=_number(environ.get("SLURM_CPUS_PER_TASK")),
        tasks=total,
    )


def _from_pbs(environ: Mapping[str, str]) -> Allocation:
    counts = _node_file("PBS_NODEFILE", environ)
    hosts = tuple(counts)
    return Allocation(
        "pbs",
        environ["PBS_JOBID"],
        hosts,
        tasks_per_node=max(counts.values()),
        gpus_per_node=_gpus_here(hosts, environ),
        cores_per_task=_number(environ.get("OMP_NUM_THREADS")),
        tasks=sum(counts.values()),
    )


def _node_file(variable: str, environ: Mapping[str, str]) -> dict[str, int]:
    """The number of ranks on each host, from the node file that this variable names: PBS's has a line for each rank.

    Raises RankError if the variable is not set, or the file is missing or empty.
    """
    name = environ.get(variable)
    if not name:
        raise RankError(f"{variable} is not set, so the nodes of this job are unknown: start this inside the job.")
    try:
        lines = Path(name).read_text().splitlines()
    except OSError as error:
        raise RankError(
            f"{variable} names the node file {name}, which cannot be read ({error.strerror}): correct it, or "
            "unset it and the variables of its job."
        ) from None
    counts = Counter(line.strip() for line in lines if line.strip())
    if not counts:
        raise RankError(f"{variable} names the node file {name}, which is empty.")
    return counts


def _gpus_here(hosts: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    """The number of NVIDIA's GPUs of this node, for schedulers that give whole nodes but do not say what is in them.

    None if there are none, or if this host does not belong to the job.
    """
    if not any(map(is_here, hosts)):
        return None
    if devices := environ.get("CUDA_VISIBLE_DEVICES"):
        return len(devices.split(","))
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) or None


def _number(text) -> int | None:
    """A scheduler's text as a number; None unless it is a whole number of at least 1."""
    text = str(text)
    return int(text) if text.isdigit() and int(text) else None


def _whole(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise RankError(f"{name} is {text!r}; it must be a whole number, at least 1.")
    return int(text)
