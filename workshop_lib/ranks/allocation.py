"""The nodes that a scheduler gave this job, read from the variables and files that it leaves for it."""

import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import hostlist

from .errors import RankError

HOST_FILE, RANKS_PER_NODE = "WORKSHOP_HOSTFILE", "WORKSHOP_RANKS_PER_NODE"


@dataclass(frozen=True)
class Allocation:
    """Hosts, in the scheduler's order, and what it told of each; None where it told nothing.

    scheduler: "slurm", "pbs", "cobalt" or "host file". tasks_per_node: ranks of each node as the job
    asked for them; the largest number where nodes differ. cores_per_task: threads of each of them.
    """

    scheduler: str
    job_id: str | None
    hosts: tuple[str, ...]
    tasks_per_node: int | None = None
    cores_per_node: int | None = None
    gpus_per_node: int | None = None
    cores_per_task: int | None = None
    tasks: int | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether a host other than this one belongs to it."""
        return any(not is_here(host) for host in self.hosts)

    def ranks_per_node(self, environ: Mapping[str, str] = os.environ) -> int:
        """WORKSHOP_RANKS_PER_NODE; else one a GPU; else as many as the job asked for; else one."""
        if text := environ.get(RANKS_PER_NODE):
            return _whole(RANKS_PER_NODE, text)
        return self.gpus_per_node or self.tasks_per_node or 1

    def ranks(self, environ: Mapping[str, str] = os.environ) -> int:
        """How many ranks fill the allocation."""
        per_node = self.ranks_per_node(environ)
        if self.tasks is not None and per_node == self.tasks_per_node:
            return self.tasks  # nodes may differ
        return per_node * len(self.hosts)


def find(environ: Mapping[str, str] = os.environ) -> Allocation | None:
    """The allocation this process runs in; None on a machine of one's own.

    A host file (WORKSHOP_HOSTFILE) comes first, then Slurm, PBS and Cobalt. Raises RankError naming a
    node file that is missing or empty, or a value that cannot be read.
    """
    if environ.get(HOST_FILE):
        return _from_host_file(environ)
    for job, read in (("SLURM_JOB_ID", _from_slurm), ("PBS_JOBID", _from_pbs), ("COBALT_JOBID", _from_cobalt)):
        if environ.get(job):
            return read(environ)
    return None


def is_here(host: str) -> bool:
    """Whether a host's name, short or with its domain, is that of this machine."""
    return host.split(".")[0] in (socket.gethostname().split(".")[0], "localhost") or host == "127.0.0.1"


def expand(nodes: str) -> list[str]:
    """Slurm's short form of host names: "nid[001-003,007],x1" -> nid001, nid002, nid003, nid007, x1."""
    try:
        names = hostlist.expand_hostlist(nodes)
    except hostlist.BadHostlist:
        raise RankError(f"The node list {nodes!r} cannot be read; Slurm writes it as in nid[001-003,007].") from None
    if not names:
        raise RankError(f"The node list {nodes!r} names no node.")
    return names


def _from_slurm(environ: Mapping[str, str]) -> Allocation:
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    if not nodes:
        raise RankError("SLURM_JOB_ID is set but SLURM_JOB_NODELIST is not: start this inside the job.")
    hosts = tuple(expand(nodes))
    per_node, total = environ.get("SLURM_NTASKS_PER_NODE"), environ.get("SLURM_NTASKS")
    # Without either, SLURM_TASKS_PER_NODE counts cores, which nobody asked to be ranks.
    counts = environ.get("SLURM_TASKS_PER_NODE") if total else None
    try:
        tasks = hostlist.parse_slurm_tasks_per_node(counts) if counts else []
    except hostlist.BadHostlist:
        raise RankError(f"SLURM_TASKS_PER_NODE is {counts!r}, but Slurm writes it as in 4(x2),3: unset it.") from None
    if sum(tasks) != int(total or 0) or len(tasks) != len(hosts):  # such as those of a step in it
        tasks = []
    if per_node is None and total is not None:
        per_node = str(max(tasks, default=math.ceil(int(total) / len(hosts))))
    return Allocation(
        "slurm",
        environ["SLURM_JOB_ID"],
        hosts,
        tasks_per_node=_number(per_node),
        cores_per_node=_number(environ.get("SLURM_CPUS_ON_NODE")),
        gpus_per_node=_slurm_gpus(environ),
        cores_per_task=_number(environ.get("SLURM_CPUS_PER_TASK")),
        tasks=sum(tasks) or None,
    )


def _slurm_gpus(environ: Mapping[str, str]) -> int | None:
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):  # "4" or "a100:4"
        if text := environ.get(name):
            return _number(text.rpartition(":")[2])
    if devices := environ.get("SLURM_JOB_GPUS"):
        return len(devices.split(","))
    return None


def _from_pbs(environ: Mapping[str, str]) -> Allocation:
    counts = _node_file("PBS_NODEFILE", environ)  # a line for each MPI process that was asked for
    hosts = tuple(counts)
    return Allocation(
        "pbs",
        environ["PBS_JOBID"],
        hosts,
        tasks_per_node=max(counts.values()),
        cores_per_node=_number(environ.get("NCPUS")),
        gpus_per_node=_gpus_here(hosts, environ),
        cores_per_task=_number(environ.get("OMP_NUM_THREADS")),
        tasks=sum(counts.values()),
    )


def _from_cobalt(environ: Mapping[str, str]) -> Allocation:
    """Machines with hosts have a node file; a Cray has numbers of nodes, and `aprun` knows their names."""
    if "COBALT_NODEFILE" in environ or "COBALT_PARTNAME" not in environ:
        hosts = tuple(_node_file("COBALT_NODEFILE", environ))
    else:
        names = environ["COBALT_PARTNAME"]
        hosts = tuple(expand(f"nid[{names}]" if re.fullmatch(r"[\d,-]+", names) else names))
        hosts = tuple(f"nid{int(host[3:]):05d}" if host.startswith("nid") else host for host in hosts)
    size = environ.get("COBALT_JOBSIZE")
    if size and _whole("COBALT_JOBSIZE", size) < len(hosts):
        hosts = hosts[: int(size)]
    return Allocation("cobalt", environ["COBALT_JOBID"], hosts, gpus_per_node=_gpus_here(hosts, environ))


def _from_host_file(environ: Mapping[str, str]) -> Allocation:
    counts = _node_file(HOST_FILE, environ)
    return Allocation("host file", None, tuple(counts), tasks_per_node=max(counts.values()), tasks=sum(counts.values()))


def _node_file(variable: str, environ: Mapping[str, str]) -> dict[str, int]:
    """Hosts with their number of ranks: lines "host", "host:2" or "host slots=2"; a host's lines add up."""
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
    counts: dict[str, int] = {}
    for words in (line.partition("#")[0].split() for line in lines):
        if not words:
            continue
        host, _, slots = words[0].partition(":")
        slots = next((word.removeprefix("slots=") for word in words[1:] if word.startswith("slots=")), slots)
        counts[host] = counts.get(host, 0) + (_whole(f"slots of {host} in {name}", slots) if slots else 1)
    if not counts:
        raise RankError(f"{variable} names the node file {name}, which is empty: it must name a host a line.")
    return counts


def _gpus_here(hosts: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    """GPUs of this node, where the scheduler gives whole nodes but does not say what is in them."""
    if not any(map(is_here, hosts)):
        return None
    if devices := environ.get("CUDA_VISIBLE_DEVICES"):
        return len(devices.split(","))
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) or None


def _number(text) -> int | None:
    """What a scheduler wrote as a number, if it is one."""
    text = str(text)
    return int(text) if text.isdigit() and int(text) else None


def _whole(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise RankError(f"{name} is {text!r}; it must be a whole number, at least 1.")
    return int(text)
