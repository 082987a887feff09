"""A real Slurm on this machine: a controller and two nodes, with a port, a key and folders of its own.

Each node is a slurmd on a host with a name and an address of its own (../hosts.py), and a third host is the login node.
So a job meets what it would on several machines, other names and a network between them. They share disk and cores.
"""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from unittest import mock

from hosts import CannotCreate, Hosts
from ipyparallel.util import select_random_ports
from our_ranks import TEST_RUN

from workshop_lib.ranks.launch.agents import Agent, Made

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue", "munged", "mungekey")
NODES, LOGIN = ("wsnode1", "wsnode2"), "wslogin"
START_LIMIT_S = 30.0
STOP_LIMIT_S = 10.0
COMMAND_LIMIT_S = 60.0
CONFIGURATION = """\
ClusterName=workshop
FirstJobId={first_job}
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={nodes[0]} NodeHostname={nodes[0]} NodeAddr={addresses[0]} {shape}
NodeName={nodes[1]} NodeHostname={nodes[1]} NodeAddr={addresses[1]} {shape}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""
# More than there is, so that the scripts of large machines can be submitted as they are; nothing is bound.
SHAPE = "CPUs=256 Gres=gpu:4 Feature=cpu,gpu"


class CannotRun(Exception):
    """Why there is no Slurm here, in one sentence."""


class Slurm:
    """A running Slurm, from `start()` to `stop()`. Raises CannotRun when it does not come up."""

    def __init__(self):
        if absent := [program for program in PROGRAMS if find(program) is None]:
            raise CannotRun(
                f"Slurm is not installed here ({', '.join(absent)} not found): install slurm-wlm and munge."
            )
        # A short path: that of a socket may have 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="ws-slurm-", dir="/tmp"))
        self.folder.chmod(0o711)  # munge wants its socket within everybody's reach
        try:
            self.hosts = Hosts(LOGIN, *NODES)
        except CannotCreate as error:
            shutil.rmtree(self.folder)
            raise CannotRun(str(error)) from None
        with mock.patch.dict(os.environ, {TEST_RUN: ""}):  # so that no test takes the agent for what a job has left
            self._agent = Agent(loads=False, variables={})
        self._processes: list[Made] = []
        # What a scheduler around the tests has set would go to the wrong one.
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")

    def start(self) -> "Slurm":
        try:
            self._agent.wait()
            self._write_configuration()
            self._start_munge()
            self._spawn("slurmctld", "-D", "-c")
            for node in NODES:
                self._spawn("slurmd", "-D", "-N", node, node=node)
            self._wait_for("both nodes", self._idle)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all jobs, then all that was started; removes the folder."""
        if len(self._processes) > 1 and self._processes[1].poll() is None:  # slurmctld
            with contextlib.suppress(AssertionError, CannotRun, subprocess.SubprocessError):
                self.cancel_all()
                self.command("scontrol", "shutdown", limit_s=STOP_LIMIT_S)
        for process in reversed(self._processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0 if process is self._processes[0] else STOP_LIMIT_S)  # munged ends at a signal
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
                process.wait(STOP_LIMIT_S)
        self._processes = []
        self._agent.end()
        self.hosts.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def at_login(self, *words) -> list[str]:
        """A command, such that it runs on the login node."""
        return [*self.hosts.command(LOGIN), *map(str, words)]

    def command(self, *words, limit_s: float = COMMAND_LIMIT_S, check: bool = True, **environment) -> str:
        """What a command such as `squeue` prints. Raises AssertionError with its output if it fails."""
        done = subprocess.run(
            [find(words[0]) or words[0], *map(str, words[1:])],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
        )
        assert done.returncode == 0 or not check, f"{words}: exit status {done.returncode}\n{done.stdout}"
        return done.stdout

    def submit(self, script: Path, *options, **environment) -> str:
        """Submit a script with sbatch, from the checkout; returns the job's id."""
        return self.command("sbatch", "--parsable", *options, script, **environment).strip().split(";")[0]

    def state(self, job: str) -> str:
        """Such as RUNNING or COMPLETED; of jobs that ended in the last minutes, too."""
        shown = self.command("scontrol", "show", "job", job)
        return shown.partition("JobState=")[2].split()[0]

    def wait(self, job: str, *states: str, limit_s: float) -> str:
        """Wait until the job is in one of these states; returns which."""
        self._wait_for(f"job {job} in {states}", lambda: self.state(job) in states, limit_s)
        return self.state(job)

    def cancel_all(self) -> None:
        """Cancel every job, and wait until none is left."""
        self.command("scancel", "--user", getpass.getuser(), check=False)
        self._wait_for("an empty queue", lambda: not self.command("squeue", "--noheader").strip(), 20)

    def _write_configuration(self) -> None:
        (self.folder / "state").mkdir()
        text = CONFIGURATION.format(
            host=socket.gethostname(),
            address=self.hosts.here,
            user=getpass.getuser(),
            folder=self.folder,
            first_job=int(time.time()) % 10_000_000,  # numbers of its own: a job writes to a folder with its number
            port=select_random_ports(1)[0],
            nodes=NODES,
            addresses=[self.hosts.address[node] for node in NODES],
            shape=SHAPE,
        )
        (self.folder / "slurm.conf").write_text(text)
        for gpu in range(4):  # Slurm only looks whether the files are there
            (self.folder / f"gpu{gpu}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-3]\n")

    def _start_munge(self) -> None:
        key, at = self.folder / "munge.key", self.folder / "munge"
        self.command("mungekey", "--create", f"--keyfile={key}")
        files = (f"--socket={at}.socket", f"--key-file={key}", f"--pid-file={at}.pid")
        self._spawn("munged", "--foreground", *files, f"--log-file={at}.log", f"--seed-file={at}.seed")
        self._wait_for("munge", (self.folder / "munge.socket").exists)

    def _spawn(self, program: str, *options: str, node: str | None = None) -> None:
        command = [*(self.hosts.command(node) if node else ()), find(program), *options]
        with open(self.folder / f"{program}.{node or 'out'}", "ab") as output:
            self._processes.append(self._agent.make(command, self.environment, output, str(self.folder)))

    def _idle(self) -> bool:
        return self.command("sinfo", "--noheader", "--format=%T", check=False).split() == ["idle"]

    def _wait_for(self, what: str, there, limit_s: float = START_LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not there():
            ended = [process.args for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                why = f"{ended[0]} ended" if ended else f"{limit_s:.0f} s have passed"
                raise CannotRun(f"Waited for {what}, but {why}:\n{self.logs()}")
            time.sleep(0.05)

    def logs(self, lines: int = 15) -> str:
        """The last lines of what its programs wrote."""
        parts = []
        for path in sorted([*self.folder.glob("*.out"), *self.folder.glob("slurmd.*")]):
            parts += [f"{path.name}:", *path.read_text("utf8", "replace").splitlines()[-lines:]]
        return "\n".join(parts)


def find(program: str) -> str | None:
    """The path of a program; Debian puts daemons where a user's PATH does not look."""
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
