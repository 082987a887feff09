"""A stand-in for every machine: the variables of its jobs, and programs that write down how they were called."""

import contextlib
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from shell_programs import program

from workshop_lib.paths import BUILD, ROOT
from workshop_lib.ranks.launch import which_mpi

MACHINES = tomllib.loads(Path(__file__).with_name("machines.toml").read_text())
SCRIPTS = sorted((ROOT / "submissions").glob("*/*.sh"))
RECORDS = {"theta": "qsub_pytorch_mnist_scale.sh"}  # the one job of a machine that is gone
NO_JOBS = ("machine.sh", "interactive.sh", "srun.sh")
PROGRAMS = ("mpiexec", "mpirun", "aprun", "srun", "qsub", "salloc")
JOB = "4711"


def job_scripts(machine: str) -> list[str]:
    return [path.name for path in SCRIPTS if path.parent.name == machine and path.name not in NO_JOBS]


class Call(NamedTuple):
    """One call of a program: its name, words and environment."""

    name: str
    words: list[str]
    environment: dict[str, str]

    @property
    def line(self) -> str:
        return " ".join([self.name, *self.words])


class StandIn:
    """A job on a machine, with its programs in a folder. `returncode` and `output` are those of the last script."""

    def __init__(self, machine: str, folder: Path, nodes: int = 2):
        self.machine, self.folder, self.log, self.output_file = machine, folder, folder / "log", folder / "output"
        self.returncode, self.output = 0, ""
        called = Path(__file__).with_name("called.py")
        for path in (*(folder / "bin" / name for name in PROGRAMS), folder / "venv" / "python"):
            program(path, f'exec {sys.executable} -IS {called} {self.log} {path.name} "$@"')
        node_file = folder / "nodes"
        node_file.write_text("".join(f"node{n}\n" for n in range(nodes)))
        (folder / "libnccl-net.so").touch()
        self.given = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(folder),
            "BASH_FUNC_module%%": "() { :; }",  # the modules are there, and set nothing
            "WORKSHOP_PYTHON": str(folder / "venv" / "python"),
            "WORKSHOP_NCCL_PLUGIN": str(folder),
            "WORKSHOP_JOB_BACKENDS": "ddp",
        }
        self.given |= {
            "pbs": {"PBS_JOBID": JOB, "PBS_NODEFILE": str(node_file), "PBS_O_WORKDIR": str(ROOT)},
            "cobalt": {"COBALT_JOBID": JOB, "COBALT_JOBSIZE": str(nodes), "COBALT_NODEFILE": str(node_file)},
            "slurm": {
                "SLURM_JOB_ID": JOB,
                "SLURM_JOB_NUM_NODES": str(nodes),
                "SLURM_NTASKS_PER_NODE": "4",
                "SLURM_CPUS_PER_TASK": "2",
            },
        }[MACHINES[machine]["scheduler"]]

    def run(self, script: str, **settings: str) -> list[Call]:
        """Run one of the machine's scripts as a job, or "interactive.sh" on a login node, to its end.

        Returns the calls of the machine's programs, and of Python.
        """
        self.log.unlink(missing_ok=True)
        scheduler = MACHINES[self.machine]["scheduler"]
        path = ROOT / "submissions" / self.machine / script
        if scheduler != "cobalt":  # the others run a copy
            path = shutil.copy(path, self.folder / "submitted.sh")
        with self.output_file.open("w") as output:
            job = subprocess.Popen(
                ["bash", str(path)],
                cwd=self.folder if scheduler == "pbs" else ROOT,  # jobs of PBS start at home
                env=self.given | settings,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            self.returncode = job.wait(280)
        self.output = self.output_file.read_text()
        with contextlib.suppress(OSError):  # it may be missing, or hold results
            (BUILD / f"{self.machine}-{JOB}").rmdir()
        return [Call(*json.loads(line)) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def launches(self, script: str, **settings: str) -> list[Call]:
        """Run a script; return the calls of the machine's launcher alone."""
        return [call for call in self.run(script, **settings) if call.name == MACHINES[self.machine]["launcher"]]


def here(most_ranks: int, options: str) -> dict[str, str]:
    """Settings with which a job really trains on this machine, on at most so many ranks, and without its modules."""
    return {
        "WORKSHOP_PYTHON": sys.executable,
        "WORKSHOP_NO_MODULES": "1",
        "WORKSHOP_JOB_OPTIONS": options,
        "STAND_IN_RANKS": str(most_ranks),
        "STAND_IN_START": json.dumps([which_mpi.mpiexec(), which_mpi.environment()]),
    }
