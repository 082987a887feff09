"""What each machine's scheduler accepts, as its center documents it; sources are in submissions/sources.md.

A job that a scheduler would turn away raises Rejected, in its words where they are documented.
"""

import getopt
import re
from dataclasses import dataclass, field
from pathlib import Path

HOUR = 60


class Rejected(Exception):
    """Why the scheduler turns a job away, in one sentence."""


@dataclass(frozen=True)
class Machine:
    """scheduler: pbs, cobalt or slurm. queues: name -> (fewest nodes, most nodes, least and most minutes).

    For Slurm, the queues are QOS, or the partitions of a machine whose jobs name no QOS. threads: hardware threads of a
    node; reserved: those that jobs may not use. gpus: of a node.
    """

    scheduler: str
    queues: dict[str, tuple[int, int, int, int]]
    threads: int
    gpus: int = 0
    reserved: frozenset[int] = frozenset()
    filesystems: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()


@dataclass
class Job:
    """What was asked for."""

    machine: str
    nodes: int
    minutes: int
    queue: str
    account: str | None
    script: Path | None
    tasks_per_node: int | None = None
    variables: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)


MACHINES = {
    "polaris": Machine(
        "pbs",
        {
            "debug": (1, 2, 5, HOUR),
            "debug-scaling": (1, 10, 5, HOUR),
            "prod": (10, 496, 5, 24 * HOUR),
            "preemptable": (1, 10, 5, 72 * HOUR),
            "capacity": (1, 4, 5, 168 * HOUR),
        },
        threads=64,
        gpus=4,
        filesystems=frozenset({"home", "eagle"}),
    ),
    "aurora": Machine(
        "pbs",
        {
            "debug": (1, 2, 5, HOUR),
            "debug-scaling": (2, 256, 5, HOUR),
            "capacity": (1, 16, 5, 168 * HOUR),
            "prod": (256, 7300, 5, 24 * HOUR),
        },
        threads=208,
        gpus=12,
        reserved=frozenset({0, 52, 104, 156}),
        filesystems=frozenset({"home", "flare", "daos_user"}),
    ),
    "sophia": Machine(
        "pbs",
        {"by-node": (1, 8, 5, 24 * HOUR), "by-gpu": (1, 8, 5, 24 * HOUR)},
        threads=256,
        gpus=8,
        filesystems=frozenset({"home", "eagle"}),
    ),
    "theta": Machine(
        "cobalt",
        {
            "default": (128, 4100, 30, 24 * HOUR),
            "debug-cache-quad": (1, 8, 1, HOUR),
            "debug-flat-quad": (1, 8, 1, HOUR),
            "training": (1, 4100, 1, 24 * HOUR),  # a reservation for the workshop
        },
        threads=256,
        attributes=frozenset({"mcdram", "numa", "filesystems", "location"}),
    ),
    "thetagpu": Machine(
        "cobalt",
        {"full-node": (1, 24, 5, 12 * HOUR), "bigmem": (1, 2, 5, 12 * HOUR), "single-gpu": (1, 1, 5, HOUR)},
        threads=256,
        gpus=8,
        filesystems=frozenset({"home", "theta-fs0", "grand", "eagle"}),
        attributes=frozenset({"filesystems", "location", "mig-mode", "pubnet"}),
    ),
    "perlmutter": Machine(
        "slurm",
        {"regular": (1, 1792, 1, 48 * HOUR), "debug": (1, 8, 1, 30), "interactive": (1, 4, 1, 4 * HOUR)},
        threads=128,
        gpus=4,
    ),
    "slurm": Machine("slurm", {"": (1, 9999, 1, 9999 * HOUR)}, threads=128),
}


def accept(machine: str, arguments: list[str]) -> Job:
    """The job that `qsub`, `sbatch` or `salloc` would make of its arguments and the script's directives."""
    job = {"pbs": _pbs, "cobalt": _cobalt, "slurm": _slurm}[MACHINES[machine].scheduler](machine, arguments)
    queues = MACHINES[machine].queues
    if job.queue not in queues:
        raise Rejected(f"Unknown queue {job.queue!r}")
    fewest, most, least_minutes, most_minutes = queues[job.queue]
    if not fewest <= job.nodes <= most:
        raise Rejected(f"{job.nodes} nodes, but queue {job.queue!r} takes {fewest} to {most}")
    if not least_minutes <= job.minutes <= most_minutes:
        raise Rejected(f"{job.minutes} minutes, but queue {job.queue!r} takes {least_minutes} to {most_minutes}")
    return job


def _pbs(machine: str, arguments: list[str]) -> Job:
    given, resources, script = {}, {}, None
    options, words = _options(arguments, with_value="ANqlkjoevWr", flags="IVX", prefix="qsub")
    if words:
        script = Path(words[0])
        directives = _lines(script, "#PBS")
        in_script, rest = _options(directives, with_value="ANqlkjoevWr", flags="VX", prefix="qsub")
        if rest:
            raise Rejected(f"qsub: illegal directive: {' '.join(rest)}")
        options = in_script + options  # the command line comes last, and wins
    for name, value in options:
        if name == "l":
            for part in value.split(","):
                key, _, amount = part.partition("=")
                resources[key] = amount
        else:
            given[name] = value
    return _check_pbs(machine, given, resources, script)


def _check_pbs(machine, given, resources, script) -> Job:
    if "A" not in given:
        raise Rejected("qsub: Account_Name is required to be set.")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", given["A"]):
        raise Rejected(f"qsub: {given['A']!r} is no name of a project")
    if unknown := set(resources) - {"select", "walltime", "filesystems", "place"}:
        raise Rejected(f"qsub: Unknown resource: {sorted(unknown)[0]}")
    for name in ("select", "walltime", "filesystems"):
        if name not in resources:
            raise Rejected(f"qsub: Resource: {name} is required to be set.")
    nodes = _chunks(machine, resources["select"])
    if unknown := set(resources["filesystems"].split(":")) - MACHINES[machine].filesystems:
        raise Rejected(f"qsub: {machine} has no file system {sorted(unknown)[0]!r}")
    if resources.get("place", "free") not in ("free", "pack", "scatter", "vscatter"):
        raise Rejected(f"qsub: Illegal place: {resources['place']}")
    if set(given.get("k", "doe")) != set("doe"):
        raise Rejected("qsub: -k doe is enforced")
    queue = given.get("q", "by-gpu" if machine == "sophia" else "prod")
    return Job(
        machine,
        nodes,
        _minutes(resources["walltime"]),
        queue,
        given["A"],
        script,
        variables=dict(part.split("=", 1) for part in filter(None, given.get("v", "").split(","))),
    )


def _chunks(machine: str, select: str) -> int:
    number, *parts = select.split(":")
    if not number.isdigit():
        raise Rejected(f"qsub: Illegal select: {select}")
    for part in parts:
        name, _, value = part.partition("=")
        if name not in ("system", "ncpus", "ngpus", "mpiprocs"):
            raise Rejected(f"qsub: Unknown resource: {name}")
        if name == "system" and value != machine:
            raise Rejected(f"qsub: system={value} is not {machine}")
    return int(number)


def _cobalt(machine: str, arguments: list[str]) -> Job:
    long = {"--attrs": "attrs", "--mode": "mode", "--env": "env"}
    options, words = _options(arguments, with_value="ntqAOie", flags="Ih", prefix="qsub", long=long)
    script = Path(words[0]) if words else None
    if script is not None:
        if not script.stat().st_mode & 0o100:
            raise Rejected(f"{script} is not executable")
        directives = _lines(script, "#COBALT")
        in_script, _ = _options(directives, with_value="ntqAOie", flags="h", prefix="qsub", long=long)
        options = in_script + options
    given = dict(options)
    if missing := [name for name in "ntA" if name not in given]:
        raise Rejected(f"No required options provided: -{' -'.join(missing)}")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", given["A"]):
        raise Rejected(f"{given['A']!r} is no name of a project")
    for pair in filter(None, given.get("attrs", "").split(":")):
        name, _, value = pair.partition("=")
        if name not in MACHINES[machine].attributes:
            raise Rejected(f"Unknown attribute {name!r}")
        unknown = set(value.split(",")) - MACHINES[machine].filesystems
        if name == "filesystems" and MACHINES[machine].filesystems and unknown:
            raise Rejected(f"{machine} has no file system {sorted(unknown)[0]!r}")
    nodes = given["n"]
    if not nodes.isdigit():
        raise Rejected(f"-n {nodes} is no number of nodes")
    queue = given.get("q", "default" if machine == "theta" else "full-node")
    return Job(machine, int(nodes), _minutes(given["t"]), queue, given["A"], script)


# Options of sbatch and salloc that the stand-in knows, each with the letter under which it keeps the value.
LONG = {
    "--account": "A",
    "--constraint": "C",
    "--partition": "p",
    "--qos": "q",
    "--gres": "g",
    "--mem": "m",
    "--nodes": "N",
    "--ntasks-per-node": "n",
    "--gpus-per-node": "G",
    "--cpus-per-task": "c",
    "--time": "t",
    "--output": "o",
    "--job-name": "J",
}


def _slurm(machine: str, arguments: list[str]) -> Job:
    options, words = _options(arguments, with_value="ACpqNcto", flags="I", prefix="sbatch", long=LONG)
    command = words if words[:1] == ["srun"] else []  # salloc's
    script = Path(words[0]) if words and not command else None
    if script is not None:
        directives = _lines(script, "#SBATCH")
        in_script, _ = _options(directives, with_value="ACpqNcto", flags="", prefix="sbatch", long=LONG)
        options = in_script + options
    given = dict(options)
    if machine == "perlmutter":
        _check_perlmutter(given, interactive=script is None)
    nodes, tasks = int(given.get("N", 1)), int(given.get("n", 1))
    if tasks * int(given.get("c", 1)) > MACHINES[machine].threads:
        raise Rejected("sbatch: error: Requested node configuration is not available")
    minutes = _minutes(given.get("t", "1"))
    queue = given.get("q") or given.get("p", "")
    return Job(machine, nodes, minutes, queue, given.get("A"), script, tasks, command=command)


def _check_perlmutter(given: dict[str, str], interactive: bool) -> None:
    for name, what in (("A", "account"), ("C", "constraint"), ("q", "qos"), ("t", "time")):
        if name not in given:
            raise Rejected(f"sbatch: error: Job request does not match any supported policy: no {what}")
    if given["C"] not in ("gpu", "cpu", "gpu&hbm80g"):
        raise Rejected(f"sbatch: error: Invalid feature specification {given['C']!r}")
    if int(given.get("G", 0)) > MACHINES["perlmutter"].gpus:
        raise Rejected(f"sbatch: error: no node has {given['G']} GPUs")
    if given["q"] == "interactive" and not interactive:
        raise Rejected("sbatch: error: qos interactive takes no batch jobs")


def _options(arguments, with_value: str, flags: str, prefix: str, long=None):
    """([(name, value), ...], remaining words), as getopt reads them; unknown options are Rejected."""
    short = "".join(f"{letter}:" for letter in with_value) + flags
    short = ("+" if "srun" in arguments else "") + short  # the options of salloc's command are not salloc's
    long = long or {}
    try:
        found, words = getopt.gnu_getopt(arguments, short, [f"{name[2:]}=" for name in long])
    except getopt.GetoptError as error:
        add = ": if Slurm has this option, add it to LONG in tests/submissions/scheduler_rules.py"
        raise Rejected(f"{prefix}: {error}{add if prefix == 'sbatch' else ''}") from None
    return [(long.get(name, name[1:]), value) for name, value in found], words


def _lines(script: Path, sentinel: str) -> list[str]:
    """The words of a script's directives: those above its first command; Cobalt stops at a blank line."""
    words = []
    for line in script.read_text().splitlines()[1:]:
        if not line.startswith("#") and (line.strip() or sentinel == "#COBALT"):
            break
        if line.startswith(sentinel + " "):
            words += line.removeprefix(sentinel).split()
    return words


def _minutes(text: str) -> int:
    """60 or 1:00:00 -> 60; 30:00 -> 30."""
    if not re.fullmatch(r"\d+(:[0-5]\d){0,2}", text):
        raise Rejected(f"{text!r} is no time: write HH:MM:SS")
    numbers = [int(part) for part in text.split(":")]
    if len(numbers) == 1:
        return numbers[0]
    seconds = 0
    for number in numbers:
        seconds = 60 * seconds + number
    return seconds // 60
