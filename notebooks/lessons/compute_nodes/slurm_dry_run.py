"""Dry-runs a Slurm job script without Slurm, to find out what it asks for and what it starts on each node.

`dry_run` reads the directives, and runs the script as Slurm would on the first node of the job, with fake programs.
"""

import re
import shlex
import tempfile
from pathlib import Path

from workshop_lib.paths import SCRIPTS

from lessons.compute_nodes.fake_programs import (
    CORES,
    NODES,
    FakeCall,
    FakePrograms,
    JobScript,
    Torchrun,
    directive_lines,
    torchrun_options,
)

SHORT = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "t": "time", "w": "nodelist"}
SHORT |= {"A": "account", "p": "partition", "J": "job-name", "o": "output", "e": "error", "D": "chdir"}
VALUED = {*SHORT.values(), "ntasks-per-node", "cpus-per-gpu", "gpus-per-node", "gpus-per-task", "gres", "cpu-bind"}
VALUED |= {"gpu-bind", "export", "mpi", "distribution", "mem", "open-mode", "signal", "qos", "constraint"}
FOREIGN = ("SLURM", "SBATCH", "SRUN", "PET_", "TORCHELASTIC")


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


def dry_run(script: Path, *arguments: str) -> JobScript:
    """Run the script as Slurm would on the first node, and return the resulting JobScript.

    Raises ValueError when an option cannot be read, for example because its value is not a number.
    """
    early, late = directive_lines(script.read_text(encoding="utf-8"), "#SBATCH")
    job = JobScript({}, late)
    for line in early:
        job.asked |= options_in(shlex.split(line.removeprefix("#SBATCH"), comments=True))[0]
    job.nodes = _nodes(job.asked)
    with tempfile.TemporaryDirectory() as folder:
        programs = FakePrograms(Path(folder), FOREIGN, _variables(job.asked))
        calls, job.problem = programs.calls(["bash", str(script), *arguments], script.parent)
        for call in calls:
            job.alone |= call.name == "torchrun"
            if call.name == "srun":
                job.torchruns += _step(call, job, programs)
    return job


def _nodes(asked: dict[str, str]) -> int:
    """The number of nodes that a script asks for, directly or through its number of tasks."""
    if given := re.match(r"\d+", asked.get("nodes", "")):
        return int(given[0])
    return -(-int(asked.get("ntasks", 1)) // int(asked.get("ntasks-per-node", 1)))


def _variables(asked: dict[str, str]) -> dict[str, object]:
    """The variables that Slurm sets for the script."""
    told = {"ntasks-per-node": "NTASKS_PER_NODE", "cpus-per-task": "CPUS_PER_TASK", "gpus-per-node": "GPUS_PER_NODE"}
    values: dict[str, object] = {f"SLURM_{told[name]}": asked[name] for name in told if name in asked}
    values |= dict.fromkeys(("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"), 0)
    values |= dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), len(NODES))
    values |= dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), "nid[001-002]")
    values |= {"SLURM_GPUS_ON_NODE": _gpus(asked), "SLURM_JOB_ID": 4711}
    return values | {"SLURMD_NODENAME": NODES[0], "SLURM_SUBMIT_DIR": SCRIPTS.parent}


def _step(call: FakeCall, job: JobScript, programs: FakePrograms) -> list[Torchrun]:
    """The torchruns that this call of `srun` starts on all nodes of the job."""
    own, command = options_in(call.words)
    given = {name: value for name, value in job.asked.items() if name not in ("cpus-per-task", "nodes")} | own
    tasks = given.get("ntasks-per-node") or -(-int(given.get("ntasks") or len(NODES)) // len(NODES))
    started = []
    nodes = re.match(r"\d+", own.get("nodes", ""))  # the least of a range such as 1-2
    for number, node in enumerate(NODES[: int(nodes[0]) if nodes else job.nodes]):
        for local in range(int(tasks)):
            place = {"SLURM_NODEID": number, "SLURM_PROCID": number * int(tasks) + local, "SLURM_LOCALID": local}
            values = call.environment | place | {"SLURMD_NODENAME": node, "WORKSHOP_NODE": node}
            inner, _ = programs.calls(["bash", "-c", '"$@"', "step", *command], call.folder, values)
            cores = int(given.get("cpus-per-task") or call.environment.get("SRUN_CPUS_PER_TASK") or _cores(given))
            found = [options for options in map(torchrun_options, inner) if options]
            started += [Torchrun(node, options, _gpus(given), cores, call.folder) for options in found]
    return started


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
