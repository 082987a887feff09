"""This process's agent, which makes ranks on this host (node_agent.py).

A notebook starts it while the learner still reads, so the first ranks need not wait until PyTorch is imported.
"""

import atexit
import contextlib
import io
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from workshop_lib.machine import cgroups
from workshop_lib.machine.kernel import in_notebook
from workshop_lib.paths import ROOT
from workshop_lib.ranks import owned
from workshop_lib.ranks.faults.rank_errors import RankError, ending

from . import limits, node_agent, processes, scratch, stub, which_mpi

FORK = "WORKSHOP_FORK"  # if set to "no", every rank imports everything by itself
PRELOAD = "workshop_lib.ranks.launch.preload"
IMPORTING = "importlib.import_module(loads)"  # node_agent's line in the traceback of an import that fails
IN_A_LIBRARY = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGABRT)  # how a broken library ends a process
SAY_AFTER_S = 1.0
# Python and libraries read variables with these beginnings when they are loaded: an agent that was started with others
# is replaced. OMP_NUM_THREADS is set in each rank anew (engine.prepare). Importing DeepSpeed in a notebook sets
# PYTORCH_NVML_BASED_CUDA_CHECK, which PyTorch reads whenever it looks for GPUs.
READ_WHEN_LOADED = ("PYTHON", "LD_", "DYLD_", "TORCH", "PYTORCH", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "OMP_")
SET_LATER = ("OMP_NUM_THREADS", "PYTORCH_NVML_BASED_CUDA_CHECK")


def forks() -> bool:
    """Whether ranks are forks here: on Linux, unless WORKSHOP_FORK is "no"."""
    return sys.platform == "linux" and os.environ.get(FORK, "").lower() not in ("no", "0")


def stub_command(record: Path, agent: "Agent | None") -> list[str]:
    """The words that mpiexec starts for each rank, before the rank's own command.

    agent: the one that makes the ranks; None if the first rank on each host starts one there.
    """
    words = [sys.executable, "-I", "-S", stub.__file__, "--record", str(record)]
    if agent is not None:
        words += ["--agent", str(agent.path)]
    elif forks():
        words += ["--load", PRELOAD]
    return [*words, "--"]


def state_of_the_library() -> dict[str, int]:
    """When each file of the library was last changed."""
    return {str(path): path.stat().st_mtime_ns for path in (ROOT / "workshop_lib").rglob("*.py")}


def read_when_loaded(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process reads only when it loads its libraries."""
    names = [name for name in environment if name.startswith(READ_WHEN_LOADED) and name not in SET_LATER]
    return {name: environment[name] for name in names}


def own_environment() -> dict[str, str]:
    """The environment of an agent of this process: that of ranks with one thread, on this host."""
    return which_mpi.rank_environment(which_mpi.environment() | {"PYTHONPATH": which_mpi.python_path()})


class Made:
    """A process that the agent made for this one, which follows it as it would follow a subprocess.Popen.

    The process ends with this one, because the agent ends it when the connection is closed. stdout: what it prints, if
    that goes to a pipe.
    """

    def __init__(self, connection, command: list[str]):
        self._connection = connection
        self.args = command
        self.stdout: IO[str] = io.StringIO()
        self.returncode: int | None = None
        self.why = ""  # the limit that ended it, as the end of a sentence

    @property
    def ending(self) -> str:
        """How the process ended, in words."""
        return ending(self.returncode or 0, self.why)

    def poll(self) -> int | None:
        """The exit code, minus the signal's number after a signal; None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired after `timeout` seconds, if given."""
        if self.returncode is not None:
            return self.returncode
        self._connection.settimeout(timeout)
        try:
            answer = self._connection.recv(1024)
        except (BlockingIOError, TimeoutError):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
        except OSError:
            answer = b""
        self._connection.close()
        status, _, self.why = answer.decode().partition(" ")
        self.returncode = int(status) if status else -signal.SIGKILL  # without an answer, the agent was killed
        return self.returncode

    def terminate(self) -> None:
        """Ask the process to end; the agent kills it after 2 s."""
        with contextlib.suppress(OSError):
            self._connection.send(bytes([signal.SIGTERM]))


class Agent:
    """An agent that ends with this process. It is ready when its socket is there.

    loads: whether it imports what ranks need, and forks. variables: what `read_when_loaded` says of its ranks.
    replaces: why the one before it no longer suited.
    """

    def __init__(self, loads: bool, variables: dict[str, str], replaces: str = ""):
        self.loads = loads
        self.replaces = replaces
        self.owner = os.getpid()
        self.library = state_of_the_library() if loads else {}
        # An agent's mark is as long as its ranks' marks, which are written over it.
        self.set_id = processes.new_set_id()
        self.variables = variables
        self.killed_before = cgroups.killed_for_memory()
        self.children_s = _of_children_s()
        environment = own_environment() | variables
        self.folder = scratch.make(scratch.temporary_folder(), self.set_id)
        self.path = self.folder / "agent"
        self.log = self.folder / "agent.log"
        flags = ["-P"] if loads else ["-I", "-S"]
        words = [sys.executable, *flags, node_agent.__file__, "--socket", str(self.path), "--owner", str(self.owner)]
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(
                [*words, "--load", PRELOAD] if loads else words,
                env=environment | {processes.VARIABLE: processes.mark(self.set_id)},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        atexit.register(self.end)

    @property
    def is_ready(self) -> bool:
        return self.path.exists()

    def why_unsuited(self, loads: bool, environment: Mapping[str, str]) -> str:
        """Why ranks with this environment can't come from this agent, in words; empty if they can."""
        if self.process.poll() is not None:
            return f"the process that had imported it ended with exit code {self.process.returncode}"
        if not self.folder.is_dir():
            return f"its temporary folder {self.folder} was removed"
        if self.loads != loads:
            return f"{FORK} has changed"
        if not loads:
            return ""
        variables = self.variables.items() ^ read_when_loaded(environment).items()
        files = self.library.items() ^ state_of_the_library().items()
        changed = sorted({name for name, _ in variables} | {os.path.relpath(path, ROOT) for path, _ in files})
        return f"{changed[0]} has changed" if changed else ""

    def wait(self) -> None:
        """Wait until the agent is ready; a notebook says so if that takes a while. Raises RankError if it fails."""
        began = time.monotonic()
        said = False
        while not self.is_ready:
            waited_s = time.monotonic() - began
            if self.process.poll() is not None or waited_s > stub.AGENT_LIMIT_S:
                how = self._how_it_failed()
                self.end()
                raise RankError(how)
            if waited_s > SAY_AFTER_S and not said and self.loads and in_notebook():
                said = True
                if self.replaces:
                    print(f"Importing PyTorch again, because {self.replaces} …")
                else:
                    print("Importing PyTorch once, for all ranks that this notebook starts …")
            time.sleep(0.01)

    def _how_it_failed(self) -> str:
        """How the agent ended, or that it isn't ready yet, and what its log says; what to do, if anything helps."""
        code = self.process.poll()
        how = f"did not get ready in {stub.AGENT_LIMIT_S:.0f} s"
        if code is not None:
            cpu_s = _of_children_s() - self.children_s
            how = ending(code, node_agent.what_ended(code, cpu_s, stub.limits(), vars(cgroups), self.killed_before))
        log = self.log.read_text(errors="replace")
        why = which_mpi.what_failed(log)
        remedy = limits.behind(why)
        failed_to_import = IMPORTING in log or code in IN_A_LIBRARY
        if self.loads and failed_to_import and not remedy:
            remedy = f"With `{FORK}=no`, ranks start without these imports, and each imports what it needs itself."
        return "\n".join(filter(None, [f"The process that makes ranks {how}.", why, remedy]))

    def make(self, command: list[str], environment: dict[str, str], output, folder: str | None = None) -> Made:
        """Have the agent run a command that is not a rank; it ends with this process.

        output: an open file. folder: where the command runs, by default where this process does.
        """
        connection = stub.connect(str(self.path))
        with open(os.devnull, "rb") as nothing:
            files = {0: nothing.fileno(), 1: output.fileno(), 2: output.fileno()}
            stub.ask(connection, command, None, environment, files, folder)
        return Made(connection, command)

    def end(self) -> None:
        """End the agent and all that it made, unless this is only a fork of the process that owns it."""
        if os.getpid() != self.owner:
            return
        atexit.unregister(self.end)
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        owned.remove(self.folder)


def _of_children_s() -> float:
    """The seconds that this process's children have computed, as far as they have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class _OfThisProcess:
    """The agent of this process, made once and replaced when it no longer suits."""

    def __init__(self):
        self.agent: Agent | None = None


_OF_THIS_PROCESS = _OfThisProcess()


def begin() -> None:
    """Start this process's agent now, so that it is ready once ranks are wanted. Errors wait until then, too."""
    with contextlib.suppress(OSError, RankError):
        _agent(own_environment())


def ready(environment: Mapping[str, str]) -> Agent:
    """An agent for ranks with this environment, ready to make them. Raises RankError if there can be none."""
    agent = _agent(environment)
    agent.wait()
    return agent


def end() -> None:
    """End this process's agent, if there is one; the next ranks get a new one."""
    if _OF_THIS_PROCESS.agent is not None:
        _OF_THIS_PROCESS.agent.end()
        _OF_THIS_PROCESS.agent = None


def pid() -> int | None:
    """The process id of this process's agent, if there is one."""
    agent = _OF_THIS_PROCESS.agent
    return agent.process.pid if agent else None


def _agent(environment: Mapping[str, str]) -> Agent:
    here = _OF_THIS_PROCESS
    if here.agent is not None and here.agent.owner != os.getpid():  # this process is a fork of the owner
        here.agent = None
    why = here.agent.why_unsuited(forks(), environment) if here.agent is not None else ""
    if why:
        end()
    if here.agent is None:
        here.agent = Agent(forks(), read_when_loaded(environment), why)
    return here.agent
