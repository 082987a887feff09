"""The nodes that a scheduler gave this job, read from the variables and files that the scheduler provides."""

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

from . import which_mpi
from .rank_errors import RankError

HOST_FILE = "WORKSHOP_HOSTFILE"
RANKS_PER_NODE = "WORKSHOP_RANKS_PER_NODE"
# The variables with which each scheduler describes a job. The variable of the job's id comes first.
VARIABLES = {
    "slurm": ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
    "pbs": ("PBS_JOBID", "PBS_NODEFILE"),
    "cobalt": ("COBALT_JOBID", "COBALT_NODEFILE", "COBALT_PARTNAME"),
    "host file": (HOST_FILE,),
}
# How to ask a scheduler about a job, and what it answers when the job is unknown or has ended.
QUERIES = {"slurm": ("scontrol", "show", "job"), "pbs": ("qstat",)}
UNKNOWN = re.compile("invalid job id|unknown job|job has finished", re.IGNORECASE)
ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
# Where Linux lists GPUs, and what it says about Intel's for data centers: PCI's numbers of the vendor and of a display
# controller. Graphics inside a processor has another number.
DRM = Path("/sys/class/drm")
INTEL_GPU = ("0x8086", "0x038000")
NAMES_ASKED = 3
NAMES_LIMIT_S = 3.0


@dataclass(frozen=True)
class Allocation:
    """Hosts in the scheduler's order, and what the scheduler says about them; None where it says nothing.

    scheduler: "slurm", "pbs", "cobalt" or "host file". tasks_per_node: ranks per node that the job asked for; the
    largest number if nodes differ. cores_per_task: threads per rank. tasks: ranks on all nodes together.
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

    A host file (WORKSHOP_HOSTFILE) is preferred, then Slurm, PBS and Cobalt in this order. Raises RankError naming
    a node file that is missing or empty, or a value that cannot be read.
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
    """Like `find`, but raise RankError within seconds if the job has ended and has only left its variables behind."""
    job = find(environ)
    if job is not None and (why := _why_ended(job)):
        origin, remedy = _left_over(job, environ)
        raise RankError(f"{origin}, but {why}. {remedy}")
    return job


def hint(job: Allocation | None, environ: Mapping[str, str] = os.environ) -> str:
    """A line to add when ranks did not start: which variables name the job's other hosts; empty without such hosts."""
    if job is None or not job.elsewhere:
        return ""
    origin, remedy = _left_over(job, environ)
    return f"\n{origin}. {remedy}"


def _left_over(job: Allocation, environ: Mapping[str, str]) -> tuple[str, str]:
    """Two texts: a clause on which variables describe the allocation, and a sentence on how to ignore it."""
    names = [name for name in VARIABLES[job.scheduler] if environ.get(name)]
    what = f"job {job.job_id} on {job.hosts[0]}" if job.job_id else job.hosts[0]
    origin = f"The environment describes {what} ({', '.join(names)})"
    return origin, f"If that's left over, unset {' '.join(names)} and start again: the ranks then run on this machine."


def _why_ended(job: Allocation) -> str | None:
    """Why this job must have ended, as part of a sentence; None unless that is certain.

    Asks the scheduler. Where the scheduler's programs are not installed, the job counts as ended if its hosts' names
    cannot be resolved.
    """
    # Nothing is certain about the user's own host file, a Cray (only its launcher knows its host names), or a job of
    # another cluster.
    if job.job_id is None or job.scheduler not in QUERIES or os.environ.get("SLURM_WORKING_CLUSTER"):
        return None
    program, *words = QUERIES[job.scheduler]
    if shutil.which(program):
        answer = which_mpi.output_of(program, *words, job.job_id)
        # There are several states if the job's id is also that of a job array.
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
    """False if it is certain within NAMES_LIMIT_S that a host's name has no address; True otherwise."""
    unknown = threading.Event()

    def ask() -> None:
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            unknown.set()

    thread = threading.Thread(target=ask, daemon=True)  # without an answer, this call may block for a minute
    thread.start()
    thread.join(NAMES_LIMIT_S)
    return not unknown.is_set()


def is_here(host: str) -> bool:
    """Whether a host name, with or without its domain, is the name of this machine."""
    return host.split(".")[0] in (socket.gethostname().split(".")[0], "localhost") or host == "127.0.0.1"


def expand(nodes: str) -> list[str]:
    """Expand Slurm's short form of host names: "nid[001-003,007],x1" -> nid001, nid002, nid003, nid007, x1.

    Raises RankError if `nodes` cannot be read or names no node.
    """
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
    per_node = environ.get("SLURM_NTASKS_PER_NODE")
    ntasks = environ.get("SLURM_NTASKS")
    total = _whole("SLURM_NTASKS", ntasks) if ntasks else None
    # If neither is set, SLURM_TASKS_PER_NODE counts cores, and nobody asked for one rank per core.
    counts = environ.get("SLURM_TASKS_PER_NODE") if total else None
    try:
        tasks = hostlist.parse_slurm_tasks_per_node(counts) if counts else []
    except hostlist.BadHostlist:
        raise RankError(f"SLURM_TASKS_PER_NODE is {counts!r}, but Slurm writes it as in 4(x2),3: unset it.") from None
    if sum(tasks) != (total or 0) or len(tasks) != len(hosts):  # they may be the counts of a job step
        tasks = []
    if per_node is None and total is not None:
        per_node = str(max(tasks, default=math.ceil(total / len(hosts))))
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
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):  # the value is "4" or "a100:4"
        if text := environ.get(name):
            return _number(text.rpartition(":")[2])
    if devices := environ.get("SLURM_JOB_GPUS"):
        return len(devices.split(","))
    return None


def _from_pbs(environ: Mapping[str, str]) -> Allocation:
    counts = _node_file("PBS_NODEFILE", environ)  # one line per MPI process that the job asked for
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
    """The allocation of a Cobalt job. A cluster has a node file; a Cray has node numbers, whose names `aprun` knows."""
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
    """The number of ranks on each host, from the node file that this variable names.

    The file has lines "host", "host:2" or "host slots=2"; several lines of one host add up. Raises RankError if the
    variable is not set, or the file is missing or empty.
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
    """The number of GPUs of this node, for schedulers that give whole nodes but do not say what is in them.

    None if there are none, or if this host does not belong to the job.
    """
    if not any(map(is_here, hosts)):
        return None
    for name in ("CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        if devices := environ.get(name):
            return len(devices.split(","))
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) or intel_gpus(environ) or None


def intel_gpus(environ: Mapping[str, str] = os.environ) -> int:
    """The number of Intel's data center GPUs that Linux shows on this host, as PyTorch counts them.

    Each tile of a GPU counts, unless ZE_FLAT_DEVICE_HIERARCHY says COMPOSITE.
    """
    whole = environ.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() == "COMPOSITE"
    count = 0
    for card in DRM.glob("card[0-9]*"):
        device = card / "device"
        try:
            kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        if kind == INTEL_GPU:
            # The drivers i915 and xe show tiles in different places.
            tiles = len(list(card.glob("gt/gt[0-9]*"))) or len(list(device.glob("tile[0-9]*")))
            count += 1 if whole else max(tiles, 1)
    return count


def _number(text) -> int | None:
    """A scheduler's text as a number; None unless it is a whole number of at least 1."""
    text = str(text)
    return int(text) if text.isdigit() and int(text) else None


def _whole(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise RankError(f"{name} is {text!r}; it must be a whole number, at least 1.")
    return int(text)
