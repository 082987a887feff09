"""Dry-runs a PBS job script without PBS, as slurm_dry_run does with one for Slurm.

`qsub` splits a `#PBS` line at white space, without regard to `#`, and refuses the script if a word is left over. PBS
starts the script in the user's home folder. HPE's `mpiexec` (PALS) then starts programs on the nodes.
"""

import re
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

WITH_VALUE = "aAcCeEjJkKlmMNopPqrRSuvW"
FOREIGN = ("PBS", "SLURM", "SBATCH", "SRUN", "PET_", "TORCHELASTIC")
MPIEXEC = {"n": "ranks", "np": "ranks", "ppn": "a_node", "d": "depth", "depth": "depth", "cpu-bind": "bind"}
MPIEXEC |= {"env": "env", "hosts": "hosts", "hostfile": "hosts"}


def qsub_options(line: str) -> tuple[dict[str, str], str]:
    """The options of a directive, with resources by their own names, and the first word that is no option, or ""."""
    words = line.removeprefix("#PBS").split()
    asked: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if not re.match("-[a-zA-Z]", word):
            return asked, word
        name, value = word[1], word[2:]
        if name in WITH_VALUE and not value and words:
            value = words.pop(0)
        if name == "l":
            asked |= {resource: given for resource, _, given in (each.partition("=") for each in value.split(","))}
        else:
            asked[name] = value
    return asked, ""


def dry_run(script: Path, *arguments: str) -> JobScript:
    """Run the script as PBS would on the first node, and return the resulting JobScript.

    Raises ValueError when an option cannot be read, for example because its value is not a number.
    """
    early, late = directive_lines(script.read_text(encoding="utf-8"), "#PBS")
    job = JobScript({}, late)
    for line in early:
        asked, left_over = qsub_options(line)
        job.asked |= asked
        if left_over and not job.refused:
            job.refused = f"{left_over!r} in {line!r} is no option"
    chunks = job.asked.get("select", "1").split("+")
    job.nodes = sum(int(chunk.partition(":")[0]) for chunk in chunks)
    given = dict(part.partition("=")[::2] for part in chunks[0].split(":")[1:])
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "nodes").write_text("".join(f"{node}\n" for node in NODES[: job.nodes]))
        values = {
            "PBS_NODEFILE": home / "nodes",
            "PBS_JOBID": "4711.pbs",
            "PBS_O_WORKDIR": SCRIPTS.parent,
            "HOME": home,
        }
        programs = FakePrograms(home, FOREIGN, values, missing=("srun", "scontrol"))
        calls, job.problem = programs.calls(["bash", str(script), *arguments], home)
        for call in calls:
            job.alone |= call.name == "torchrun"
            if call.name == "mpiexec":
                job.torchruns += _started(call, job.nodes, int(given.get("ngpus", 0)), programs)
    return job


def _started(call: FakeCall, nodes: int, gpus: int, programs: FakePrograms) -> list[Torchrun]:
    """The torchruns that this call of `mpiexec` starts on all nodes of the job."""
    words = list(call.words)
    own: dict[str, str] = {}
    while words and words[0].startswith("-"):
        name, given, value = words.pop(0).lstrip("-").partition("=")
        if name in MPIEXEC:
            own[MPIEXEC[name]] = value if given or not words else words.pop(0)
    ranks = int(own.get("ranks", 1))
    a_node = int(own.get("a_node", -(-ranks // nodes)))
    cores = CORES if own.get("bind") == "none" else int(own.get("depth", 1))
    started = []
    for rank in range(ranks):
        node = NODES[rank // a_node % len(NODES)]
        place = {"PALS_RANKID": rank, "PALS_NODEID": rank // a_node, "WORKSHOP_NODE": node}
        inner, _ = programs.calls(["bash", "-c", '"$@"', "step", *words], call.folder, call.environment | place)
        found = [options for options in map(torchrun_options, inner) if options]
        started += [Torchrun(node, options, gpus, cores, call.folder) for options in found]
    return started
