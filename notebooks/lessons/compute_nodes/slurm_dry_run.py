"""Dry-runs a Slurm job script without Slurm, to find out what it asks for and what it starts on each node.

10_compute_nodes judges the learner's job script by it. `dry_run` reads the directives, and runs the script as Slurm
would on the first node of the job. Programs that record how they were called replace `srun`, `torchrun`, `scontrol`,
`hostname` and the other PROGRAMS, so nothing is trained.
"""

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path

from torch.distributed.run import get_args_parser

from workshop_lib.paths import SCRIPTS

# Nodes of the notebook's job; GPUs and cores per node.
NODES = ("nid001", "nid002")
GPUS = 2
CORES = 32
ADDRESS = "10.0.0.1"  # address of the first node
LIMIT_S = 10.0
SHORT = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "t": "time", "w": "nodelist"}
SHORT |= {"A": "account", "p": "partition", "J": "job-name", "o": "output", "e": "error", "D": "chdir"}
VALUED = {*SHORT.values(), "ntasks-per-node", "cpus-per-gpu", "gpus-per-node", "gpus-per-task", "gres", "cpu-bind"}
VALUED |= {"gpu-bind", "export", "mpi", "distribution", "mem", "open-mode", "signal", "qos", "constraint"}
# Source of the program that replaces each of PROGRAMS: it records its call, and prints what the script may ask for.
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
    """One torchrun: its node, its options, and the numbers of GPUs and cores that its Slurm step gives it."""

    node: str
    options: Namespace
    gpus: int
    cores: int


@dataclass
class SlurmJob:
    """What a job script asks Slurm for, and what it starts."""

    asked: dict[str, str]
    late: list[str]  # directives below the first command, which Slurm does not read
    torchruns: list[Torchrun] = field(default_factory=list)
    alone: bool = False  # whether the script called torchrun without srun
    problem: str = ""  # why the script did not run to its end

    @property
    def nodes(self) -> int:
        """The number of nodes that the script asks for, directly or through its number of tasks."""
        if given := re.match(r"\d+", self.asked.get("nodes", "")):
            return int(given[0])
        return -(-int(self.asked.get("ntasks", 1)) // int(self.asked.get("ntasks-per-node", 1)))


def options_in(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split words into Slurm's options, by their long names, and the words after the options."""
    found = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            found[name] = value if given else rest.pop(0) if name in VALUED and rest else ""
        else:
            name = SHORT.get(word[1:2], word[1:2])
            value = word[2:]
            found[name] = value or (rest.pop(0) if name in VALUED and rest else "")
    return found, rest


def directives(text: str) -> tuple[dict[str, str], list[str]]:
    """The options in the `#SBATCH` lines above the first command, and the `#SBATCH` lines below it."""
    asked: dict[str, str] = {}
    late = []
    begun = False
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            if begun:
                late.append(line)
            else:
                asked |= options_in(words)[0]
        begun = begun or bool(line.strip()) and not line.startswith("#")
    return asked, late


def dry_run(script: Path, *arguments: str) -> SlurmJob:
    """Run the script as Slurm would on the first node, and return the resulting SlurmJob.

    Raises ValueError when an option cannot be read, for example because its value is not a number.
    """
    job = SlurmJob(*directives(script.read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as folder:
        fake_machines = Path(folder)
        for name in PROGRAMS:
            (fake_machines / name).write_text(f"#!{sys.executable} -IS\n{NOTE}")
            (fake_machines / name).chmod(0o755)
        environment = _environment(job.asked, fake_machines)
        calls, job.problem = _calls(["bash", str(script), *arguments], environment, script.parent)
        for name, words, seen in calls:
            job.alone |= name == "torchrun"
            if name == "srun":
                job.torchruns += _step(words, seen, job, script.parent)
    return job


def _environment(asked: dict[str, str], fake_machines: Path) -> dict[str, str]:
    """The script's environment, as Slurm would set it.

    The stand-ins are also bash functions, which take precedence even if the script changes PATH.
    """
    foreign = ("SLURM", "SBATCH", "SRUN", "PET_", "TORCHELASTIC")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    functions = {f"BASH_FUNC_{name}%%": f'() {{ "{fake_machines}/{name}" "$@"; }}' for name in PROGRAMS}
    told = {"ntasks-per-node": "NTASKS_PER_NODE", "cpus-per-task": "CPUS_PER_TASK", "gpus-per-node": "GPUS_PER_NODE"}
    values: dict[str, object] = {f"SLURM_{told[name]}": asked[name] for name in told if name in asked}
    values |= dict.fromkeys(("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"), 0)
    values |= dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), len(NODES))
    values |= dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), "nid[001-002]")
    values |= {"SLURM_GPUS_ON_NODE": _gpus(asked), "SLURM_JOB_ID": 4711}
    values |= {"SLURMD_NODENAME": NODES[0], "SLURM_SUBMIT_DIR": SCRIPTS.parent}
    path = {"PATH": f"{fake_machines}:{os.environ['PATH']}", "WORKSHOP_CALLS": str(fake_machines / "calls")}
    return inherited | functions | path | {name: str(value) for name, value in values.items()}


def _calls(command: list[str], environment: dict[str, str], cwd: Path) -> tuple[list, str]:
    """Run a command; return its calls of the stand-ins, and why the command failed, or "" if it did not.

    Each call is [name, words, environment].
    """
    calls = Path(environment["WORKSHOP_CALLS"])
    calls.unlink(missing_ok=True)
    with tempfile.TemporaryFile("w+") as errors:  # a pipe would stay open as long as what the script left running
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            failed = process.wait(LIMIT_S)
            errors.seek(0)
            problem = errors.read().strip() if failed else ""
        except subprocess.TimeoutExpired:
            problem = f"it had not ended after {LIMIT_S:g} s, although nothing is trained here"
        finally:
            with contextlib.suppress(ProcessLookupError):  # Slurm, too, ends what a job leaves behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else [], problem


def _step(words: list[str], seen: dict[str, str], job: SlurmJob, cwd: Path) -> list[Torchrun]:
    """The torchruns that `srun` with these words starts on all nodes of the job."""
    own, command = options_in(words)
    given = {name: value for name, value in job.asked.items() if name not in ("cpus-per-task", "nodes")} | own
    tasks = given.get("ntasks-per-node") or -(-int(given.get("ntasks") or len(NODES)) // len(NODES))
    started = []
    nodes = re.match(r"\d+", own.get("nodes", ""))  # the least of a range such as 1-2
    for number, node in enumerate(NODES[: int(nodes[0]) if nodes else job.nodes]):
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
    """The options in this call of torchrun; None if it calls a different program, or if its options are invalid."""
    name, words, _ = call
    if name != "torchrun":
        if not name.startswith("python") or words[:2] != ["-m", "torch.distributed.run"]:
            return None
        words = words[2:]
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        return get_args_parser().parse_args(words)
    return None


def _gpus(given: dict[str, str]) -> int:
    """The number of GPUs that one task of a step sees with these Slurm options."""
    for name, nodes in (("gpus-per-task", 1), ("gpus-per-node", 1), ("gres", 1), ("gpus", len(NODES))):
        if name in given:
            count = given[name].rpartition(":")[2]
            return (int(count) if count.isdigit() else 1) // nodes
    return 0


def _cores(given: dict[str, str]) -> int:
    """The number of cores of a task if `srun` does not say: one, unless cores come with GPUs or nothing is bound."""
    if "cpus-per-gpu" in given:
        return int(given["cpus-per-gpu"]) * _gpus(given)
    return CORES if given.get("cpu-bind") == "none" and "exclusive" in given else 1
