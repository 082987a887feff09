"""The nodes that a scheduler gave this job, read from the variables and files that it leaves for it."""

import math
import os
import re
import shutil
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import hostlist

from . import mpi
from .errors import RankError

HOST_FILE, RANKS_PER_NODE = "WORKSHOP_HOSTFILE", "WORKSHOP_RANKS_PER_NODE"
# The variables with which a scheduler describes a job: its number comes first.
VARIABLES = {
    "slurm": ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
    "pbs": ("PBS_JOBID", "PBS_NODEFILE"),
    "cobalt": ("COBALT_JOBID", "COBALT_NODEFILE", "COBALT_PARTNAME"),
    "host file": (HOST_FILE,),
}
# How to ask a scheduler for a job, and how it says that it doesn't have the job any more.
QUERIES = {"slurm": ("scontrol", "show", "job"), "pbs": ("qstat",)}
UNKNOWN = re.compile("invalid job id|unknown job|job has finished", re.IGNORECASE)
ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
NAMES_ASKED, NAMES_LIMIT_S = 3, 3.0


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
    if environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID"):
        return _from_slurm(environ)
    if environ.get("PBS_JOBID"):
        return _from_pbs(environ)
    if environ.get("COBALT_JOBID"):
        return _from_cobalt(environ)
    return None


def find_living(environ: Mapping[str, str] = os.environ) -> Allocation | None:
    """`find`; but for a job that has ended and has only left its variables behind, it raises RankError in seconds."""
    job = find(environ)
    if job is not None and (why := _why_ended(job)):
        origin, remedy = _left_over(job, environ)
        raise RankError(f"{origin}, but {why}. {remedy}")
    return job


def hint(job: Allocation | None, environ: Mapping[str, str] = os.environ) -> str:
    """For ranks that did not start on an allocation's other hosts: where those come from, on a line of its own."""
    if job is None or not job.elsewhere:
        return ""
    origin, remedy = _left_over(job, environ)
    return f"\n{origin}. {remedy}"


def _left_over(job: Allocation, environ: Mapping[str, str]) -> tuple[str, str]:
    """Which variables describe the allocation, as the beginning of a sentence; and how to ignore it, as a sentence."""
    names = [name for name in VARIABLES[job.scheduler] if environ.get(name)]
    what = f"job {job.job_id} on {job.hosts[0]}" if job.job_id else job.hosts[0]
    origin = f"{' and '.join(names)} describe{'s' * (len(names) == 1)} {what}"
    those = "they are" if len(names) > 1 else "it is"
    return origin, f"If {those} left over, unset {' '.join(names)} and start again: the ranks then run on this machine."


def _why_ended(job: Allocation) -> str | None:
    """Why this job cannot be there any more, as part of a sentence; None unless that is certain.

    The scheduler knows. On a machine without its programs, hosts that have no address can't be reached in any way.
    """
    if job.job_id is None or job.scheduler not in QUERIES or os.environ.get("SLURM_WORKING_CLUSTER"):
        return None  # the user's own file; a Cray, whose names only its launcher knows; a job of another cluster
    program, *words = QUERIES[job.scheduler]
    if shutil.which(program):
        answer = mpi.output_of(program, *words, job.job_id)
        # Several, if this is the number of a job array, too.
        states = re.findall(r"JobState=(\w+)", answer)
        if states and all(state in ENDED for state in states):
            return f"`{program}` says that it is {states[0]}"
        return f"`{program}` doesn't know it any more" if not states and UNKNOWN.search(answer) else None
    if os.environ.get("WORKSHOP_MPIEXEC") or any(is_here(host) for host in job.hosts):
        return None
    if any(_may_resolve(host) for host in job.hosts[:NAMES_ASKED]):
        return None
    return f"no host named {job.hosts[0]} can be found from here"


def _may_resolve(host: str) -> bool:
    """Whether a host's name has an address, or nobody says within the limit that it has none."""
    unknown = threading.Event()

    def ask() -> None:
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            unknown.set()

    thread = threading.Thread(target=ask, daemon=True)  # a resolver that doesn't answer may take a minute
    thread.start()
    thread.join(NAMES_LIMIT_S)
    return not unknown.is_set()


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
        environ.get("SLURM_JOB_ID") or environ["SLURM_JOBID"],
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
