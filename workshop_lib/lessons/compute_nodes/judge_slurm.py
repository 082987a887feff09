"""A job script for Slurm, as it would run, without Slurm: what it asks for, and what it starts on each node.

`dry_run` reads the directives, and runs the script as Slurm would on the first node of the job. `srun`, `torchrun`,
`scontrol` and `hostname` are programs there that note how they were called, so nothing is trained.
"""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path

from torch.distributed.run import get_args_parser

from workshop_lib.paths import SCRIPTS

NODES, GPUS, CORES = ("nid001", "nid002"), 2, 32  # of the job that the notebook asks for, and of each node
ADDRESS = "10.0.0.1"  # of the first node
LIMIT_S = 10.0
SHORT = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "t": "time", "w": "nodelist"}
SHORT |= {"A": "account", "p": "partition", "J": "job-name", "o": "output", "e": "error", "D": "chdir"}
VALUED = {*SHORT.values(), "ntasks-per-node", "cpus-per-gpu", "gpus-per-node", "gpus-per-task", "gres", "cpu-bind"}
VALUED |= {"gpu-bind", "export", "mpi", "distribution", "mem", "open-mode", "signal", "qos", "constraint"}
# Notes how it was called; prints what the script may want to know of the job.
NOTE = f"""\
import json, os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(os.environ["WORKSHOP_CALLS"], "a") as calls:
    print(json.dumps([name, words, dict(os.environ)]), file=calls)
if name == "scontrol" and "hostnames" in words:
    print(*{NODES}, sep="\\n")
if "hostname" in (name, *words):
    print("{ADDRESS}" if set(words) & set(("-i", "-I", "--ip-address")) else os.environ["SLURMD_NODENAME"])
"""
PROGRAMS = ("srun", "torchrun", "scontrol", "hostname", "python", "python3", "mpirun", "mpiexec")


@dataclass
class Torchrun:
    """One torchrun: on which node, its options, and how many GPUs and cores its step leaves it."""

    node: str
    options: Namespace
    gpus: int
    cores: int

    @property
    def meeting(self) -> tuple:
        """Where and as what it meets the others."""
        given = self.options
        return given.rdzv_backend, given.rdzv_id, given.rdzv_endpoint or f"{given.master_addr}:{given.master_port}"


@dataclass
class Job:
    """What Slurm is asked for, and what comes of it."""

    asked: dict[str, str]
    late: list[str]  # directives that stand too late to be read
    torchruns: list[Torchrun] = field(default_factory=list)
    alone: bool = False  # torchrun was called without srun
    problem: str = ""  # why it did not run to its end

    @property
    def nodes(self) -> int:
        """How many are asked for, by number or by tasks."""
        if given := re.match(r"\d+", self.asked.get("nodes", "")):
            return int(given[0])
        return -(-int(self.asked.get("ntasks", 1)) // int(self.asked.get("ntasks-per-node", 1)))


def options_in(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Slurm's options by their long names, and the words after them."""
    found, rest = {}, list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            found[name] = value if given else rest.pop(0) if name in VALUED and rest else ""
        else:
            name, value = SHORT.get(word[1:2], word[1:2]), word[2:]
            found[name] = value or (rest.pop(0) if name in VALUED and rest else "")
    return found, rest


def directives(text: str) -> tuple[dict[str, str], list[str]]:
    """The options in `#SBATCH` lines above the first command, and the lines that stand below it."""
    asked: dict[str, str] = {}
    late, begun = [], False
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            late += [line] * begun
            asked |= {} if begun else options_in(words)[0]
        begun = begun or bool(line.strip()) and not line.startswith("#")
    return asked, late


def dry_run(script: Path, *arguments: str) -> Job:
    """The Job that comes of the script on the first node."""
    job = Job(*directives(script.read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as folder:
        stand_ins = Path(folder)
        for name in PROGRAMS:
            (stand_ins / name).write_text(f"#!{sys.executable} -IS\n{NOTE}")
            (stand_ins / name).chmod(0o755)
        environment = _environment(job.asked, stand_ins)
        calls, job.problem = _calls(["bash", str(script), *arguments], environment, script.parent)
        for name, words, seen in calls:
            job.alone |= name == "torchrun"
            if name == "srun":
                job.torchruns += _step(words, seen, job, script.parent)
    return job


def _environment(asked: dict[str, str], stand_ins: Path) -> dict[str, str]:
    """That of the script, as Slurm sets it. Functions of bash win over a PATH that the script may set."""
    foreign = ("SLURM", "SBATCH", "SRUN", "PET_", "TORCHELASTIC")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    functions = {f"BASH_FUNC_{name}%%": f'() {{ "{stand_ins}/{name}" "$@"; }}' for name in PROGRAMS}
    told = {"ntasks-per-node": "NTASKS_PER_NODE", "cpus-per-task": "CPUS_PER_TASK", "gpus-per-node": "GPUS_PER_NODE"}
    values: dict[str, object] = {f"SLURM_{told[name]}": asked[name] for name in told if name in asked}
    values |= dict.fromkeys(("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"), 0)
    values |= dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), len(NODES))
    values |= dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), "nid[001-002]")
    values |= {"SLURM_GPUS_ON_NODE": _gpus(asked), "SLURM_JOB_ID": 4711}
    values |= {"SLURMD_NODENAME": NODES[0], "SLURM_SUBMIT_DIR": SCRIPTS.parent}
    path = {"PATH": f"{stand_ins}:{os.environ['PATH']}", "WORKSHOP_CALLS": str(stand_ins / "calls")}
    return inherited | functions | path | {name: str(value) for name, value in values.items()}


def _calls(command: list[str], environment: dict[str, str], cwd: Path) -> tuple[list, str]:
    """How the stand-ins were called by a command, and why the command failed, if it did."""
    calls = Path(environment["WORKSHOP_CALLS"])
    calls.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL
        )
        problem = done.stderr.strip() if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"it had not ended after {LIMIT_S:g} s, although nothing is trained here"
    return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else [], problem


def _step(words: list[str], seen: dict[str, str], job: Job, cwd: Path) -> list[Torchrun]:
    """The torchruns that an `srun` with these words starts, on all nodes of the job."""
    own, command = options_in(words)
    given = {name: value for name, value in job.asked.items() if name not in ("cpus-per-task", "nodes")} | own
    tasks = given.get("ntasks-per-node") or -(-int(given.get("ntasks") or len(NODES)) // len(NODES))
    started = []
    for number, node in enumerate(NODES[: int(own.get("nodes") or job.nodes)]):
        for local in range(int(tasks)):
            place = {"SLURM_NODEID": number, "SLURM_PROCID": number * int(tasks) + local, "SLURM_LOCALID": local}
            environment = seen | {name: str(value) for name, value in place.items()} | {"SLURMD_NODENAME": node}
            calls, _ = _calls(["bash", "-c", '"$@"', "step", *command], environment, cwd)
            cores = given.get("cpus-per-task") or seen.get("SRUN_CPUS_PER_TASK") or _cores(given)
            started += [
                Torchrun(node, options, _gpus(given), int(cores)) for options in map(_options, calls) if options
            ]
    return started


def _options(call: list) -> Namespace | None:
    """The options of a torchrun that was called like this; None for another program, or wrong options."""
    name, words, _ = call
    if name != "torchrun":
        if not name.startswith("python") or words[:2] != ["-m", "torch.distributed.run"]:
            return None
        words = words[2:]
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        return get_args_parser().parse_args(words)
    return None


def _gpus(given: dict[str, str]) -> int:
    """GPUs that one task of a step sees, by Slurm's options."""
    for name, nodes in (("gpus-per-task", 1), ("gpus-per-node", 1), ("gres", 1), ("gpus", len(NODES))):
        if name in given:
            count = given[name].rpartition(":")[2]
            return (int(count) if count.isdigit() else 1) // nodes
    return 0


def _cores(given: dict[str, str]) -> int:
    """Cores of a task whose `srun` doesn't say how many: one, unless they come with GPUs, or nothing is bound."""
    if "cpus-per-gpu" in given:
        return int(given["cpus-per-gpu"]) * _gpus(given)
    return CORES if given.get("cpu-bind") == "none" and "exclusive" in given else 1
