"""Submitting the project's own scripts on a stand-in for a machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

from shell_programs import program

from workshop_lib.paths import ROOT
from workshop_lib.ranks import which_mpi

FAKE_MACHINE = Path(__file__).with_name("fake_machine.py")
PROGRAMS = ("qsub", "qsub-gpu", "sbatch", "salloc", "mpiexec", "mpirun", "aprun", "srun")
SCRIPTS = sorted((ROOT / "submissions").glob("*/*.sh"))
NO_JOBS = ("machine.sh", "interactive.sh", "srun.sh")
SUBMIT = {"theta": ["qsub"], "thetagpu": ["qsub-gpu"], "slurm": ["sbatch"], "perlmutter": ["sbatch", "-A", "m1"]}


def job_scripts(machine: str) -> list[Path]:
    return [path for path in SCRIPTS if path.parent.name == machine and path.name not in NO_JOBS]


def submission(machine: str) -> list[str]:
    """The command that submits a script there, as the pages say it."""
    return SUBMIT.get(machine, ["qsub", "-A", "project"])


class FakeMachine:
    """A machine's commands on PATH, in a folder; `run` runs one as a user there would."""

    def __init__(self, machine: str, folder: Path):
        self.machine, self.folder, self.log = machine, folder, folder / "log.jsonl"
        for name in PROGRAMS:
            called = "qsub" if name == "qsub-gpu" else name
            program(folder / "bin" / name, f'exec {sys.executable} {FAKE_MACHINE} {called} "$@"')
        # Beside this Python there is no mpiexec, as after `make setup MPI=system`.
        program(folder / "venv" / "python", f'exec {sys.executable} "$@"')

    def environment(self, **settings: str) -> dict[str, str]:
        foreign = ("SLURM_", "PBS_", "COBALT_", "WORKSHOP_MPI", "WORKSHOP_JOB", "OMPI_COMM", "PMIX_")
        here = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        return (
            here
            | {
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "FAKE_MACHINE_MACHINE": self.machine,
                "FAKE_MACHINE_LOG": str(self.log),
                "FAKE_MACHINE_MOST_RANKS": "2",
                "FAKE_MACHINE_MPIEXEC": which_mpi.mpiexec()[0],
                "FAKE_MACHINE_MPI_SETTINGS": json.dumps(which_mpi.environment()),
                "WORKSHOP_NO_MODULES": "1",
                "WORKSHOP_PYTHON": str(self.folder / "venv" / "python"),
            }
            | settings
        )

    def run(self, *command, limit_s: float = 280.0, typed: str = "", **settings) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(word) for word in command],
            cwd=ROOT,
            env=self.environment(**settings),
            input=typed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
        )

    def calls(self, *names: str) -> list[dict]:
        if not self.log.exists():
            return []
        found = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [call for call in found if call["name"] in names]
