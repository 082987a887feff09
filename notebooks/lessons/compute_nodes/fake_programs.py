"""What dry runs of Slurm's and PBS's job scripts share: programs that record how they were called, and the job.

10_compute_nodes judges the learner's job scripts by what they would start on each node. Fakes replace `srun`,
`mpiexec`, `torchrun`, `hostname` and the other PROGRAMS, so nothing is trained.
"""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torch.distributed.run import get_args_parser

# Nodes of the notebook's job; GPUs and cores per node.
NODES = ("nid001", "nid002")
GPUS = 2
CORES = 32
ADDRESS = "10.0.0.1"  # address of the first node
LIMIT_S = 10.0
# Source of the program that replaces each of PROGRAMS: it records its call, and prints what the script may ask for.
NOTE = f"""\
import json, os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
if name in os.environ["WORKSHOP_MISSING"].split():
    sys.exit(name + ": command not found")
with open(os.environ["WORKSHOP_CALLS"], "a") as calls:
    print(json.dumps([name, words, dict(os.environ), os.getcwd()]), file=calls)
if name == "scontrol" and "hostnames" in words:
    print(*{NODES}, sep="\\n")
if "hostname" in (name, *words):
    print("{ADDRESS}" if set(words) & set(("-i", "-I", "--ip-address")) else os.environ["WORKSHOP_NODE"])
"""
PROGRAMS = ("srun", "torchrun", "scontrol", "hostname", "python", "python3", "mpirun", "mpiexec")


class FakeCall(NamedTuple):
    """One call of a fake program."""

    name: str
    words: list[str]
    environment: dict[str, str]
    folder: str


@dataclass
class Torchrun:
    """One torchrun: its node, its options, the numbers of GPUs and cores that it may use, and where it runs."""

    node: str
    options: Namespace
    gpus: int
    cores: int
    folder: str


@dataclass
class JobScript:
    """What a job script asks its scheduler for, and what it starts."""

    asked: dict[str, str]
    late: list[str]  # directives below the first command, which the scheduler doesn't read
    nodes: int = 1
    torchruns: list[Torchrun] = field(default_factory=list)
    alone: bool = False  # whether the script called torchrun without a launcher
    problem: str = ""  # why the script did not run to its end
    refused: str = ""  # what the scheduler says if it doesn't accept the script


class FakePrograms:
    """The fakes, in a folder, and the environment of a job script that calls them.

    They are also bash functions, which take precedence even if the script changes PATH. foreign: the beginnings of
    variables that a job doesn't inherit. values: the scheduler's variables. missing: programs that it lacks.
    """

    def __init__(self, folder: Path, foreign: tuple[str, ...], values: Mapping, missing: Iterable[str] = ()):
        for name in PROGRAMS:
            (folder / name).write_text(f"#!{sys.executable} -IS\n{NOTE}")
            (folder / name).chmod(0o755)
        self.notes = folder / "calls"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        functions = {f"BASH_FUNC_{name}%%": f'() {{ "{folder}/{name}" "$@"; }}' for name in PROGRAMS}
        own = {"PATH": f"{folder}:{os.environ['PATH']}", "WORKSHOP_CALLS": str(self.notes), "WORKSHOP_NODE": NODES[0]}
        own["WORKSHOP_MISSING"] = " ".join(missing)
        self.environment = inherited | functions | own | {name: str(value) for name, value in values.items()}

    def calls(self, command: list[str], folder: str | Path, values: Mapping = {}) -> tuple[list[FakeCall], str]:
        """Run a command; return its calls of the fakes, and why the command failed, or "" if it did not."""
        self.notes.unlink(missing_ok=True)
        with tempfile.TemporaryFile("w+") as errors:  # a pipe would stay open as long as what the script left running
            process = subprocess.Popen(
                command,
                env=self.environment | {name: str(value) for name, value in values.items()},
                cwd=folder,
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
                with contextlib.suppress(ProcessLookupError):  # a scheduler, too, ends what a job leaves behind
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [FakeCall(*json.loads(line)) for line in lines], problem


def directive_lines(text: str, begin: str) -> tuple[list[str], list[str]]:
    """The lines that begin with `begin`, such as #SBATCH, above the first command, and those below it."""
    early: list[str] = []
    late: list[str] = []
    begun = False
    for line in text.splitlines():
        if line.startswith(begin):
            (late if begun else early).append(line)
        begun = begun or bool(line.strip()) and not line.startswith("#")
    return early, late


def torchrun_options(call: FakeCall) -> Namespace | None:
    """The options in this call of torchrun; None if it calls a different program, or if its options are invalid."""
    words = call.words
    if call.name != "torchrun":
        if not call.name.startswith("python") or words[:2] != ["-m", "torch.distributed.run"]:
            return None
        words = words[2:]
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        return get_args_parser().parse_args(words)
    return None
