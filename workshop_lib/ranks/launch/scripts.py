"""Run a script in processes of its own, as from a terminal, but with a time limit and nothing left behind."""

import contextlib
import os
import re
import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from workshop_lib.machine.forks import unless_forked
from workshop_lib.machine.world import loopback
from workshop_lib.ranks.faults.rank_errors import RankError

from . import agents, allocation, launchers, limits, processes, which_mpi
from .scratch import Scratch

# About once in a hundred runs under PyTorch 2.13, a thread of gloo releases a tensor so late that Python is already
# shutting down. Python then ends the thread inside a destructor, which C++ doesn't allow.
GLOO_ABORTED = "terminate called without an active exception"


def run(*command, timeout_s: float = 120.0, set_id: str = "", only: str = "") -> None:
    """Run `command` until it ends, and print what it prints.

    The first word may name a program that is installed beside this Python, such as `torchrun`. Each process computes
    with one thread, as the ranks of a notebook do. set_id: the name in the mark of the command's processes; by default
    a random one. only: a regular expression; print only lines that contain a match, and how many lines were left out.
    Raises RankError if the command fails, or does not end within `timeout_s` seconds. Then all its processes are ended,
    even those in sessions of their own, such as torchrun's. They also end if this process itself is killed.
    """
    words = [str(word) for word in command]
    print("$", shlex.join(words), flush=True)
    if "--standalone" in words and (job := allocation.find()) is not None and job.elsewhere:
        print("torchrun --standalone stays on this node. Notebook 10 has a job script for several nodes.", flush=True)
    set_id = set_id or processes.new_set_id()
    too_long = threading.Event()

    def end() -> None:
        too_long.set()
        processes.end(set_id)

    timer = threading.Timer(timeout_s, end)
    left_out = 0
    aborted = False
    with started(words, set_id) as process:
        timer.start()
        try:
            for line in process.stdout:  # ends when the last process that could write has ended
                aborted |= GLOO_ABORTED in line
                if re.search(only, line):
                    print(line, end="", flush=True)
                else:
                    left_out += 1
            if left_out:
                print(f"({left_out} more lines)")
            status = process.wait()
        finally:
            timer.cancel()
            timer.join()
    if too_long.is_set():
        raise RankError(f"`{shlex.join(words)}` had not finished after {timeout_s:g} s, so it was ended.")
    if status:
        by_gloo = "PyTorch's gloo aborted a rank that was done, as it rarely does: run it again."
        why = by_gloo if aborted else "the lines above say why."
        if process.why:
            raise RankError(f"`{shlex.join(words)}` {process.ending}.")
        if Path(words[0]).name == "mpiexec":
            why = f"{why} {which_mpi.suspects()}".rstrip()
        raise RankError(f"`{shlex.join(words)}` {process.ending}; {why}")


@contextlib.contextmanager
def started(words: list[str], set_id: str, folder: str | None = None, **settings: str) -> Iterator[agents.Made]:
    """Start a command whose processes carry the mark of `set_id`; yield its process, with its output in a pipe.

    The first word may name a program beside this Python. folder: where the command runs. settings: variables for its
    environment, in addition to those of ranks. None of its processes is left afterwards, even if this process is
    killed. Raises RankError if this host's limits let no rank start.
    """
    limits.require(1)
    with contextlib.ExitStack() as left:
        scratch = Scratch(set_id)
        left.callback(unless_forked(scratch.remove))
        reading, writing = os.pipe()
        output = left.enter_context(open(reading, errors="replace"))
        with open(writing, "wb") as end:
            agent = agents.Agent(loads=False, variables={})
            left.callback(agent.end)
            left.callback(unless_forked(processes.end, set_id))
            agent.wait()
            environment = which_mpi.rank_environment(_settings() | scratch.settings | settings)
            environment[processes.VARIABLE] = processes.mark(set_id)
            environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
            beside_python = Path(sys.executable).parent / words[0]
            program = str(beside_python) if beside_python.exists() else words[0]
            process = agent.make([program, *words[1:]], environment, end, folder)
        process.stdout = output
        yield process


def mpiexec(n: int) -> list[str]:
    """The words that start `n` ranks of MPI, for `run`: on the nodes of this job or, without a job, on this machine."""
    job = allocation.find()
    if job is None and not os.environ.get("WORKSHOP_MPIEXEC"):
        return ["mpiexec", "-n", str(n)]
    plan = launchers.plan(n, 1, "none", job, launchers.OWN_VARIABLES)
    usual = which_mpi.environment()  # what `started` sets
    changes = [f"{name}={value}" for name, value in plan.settings.items() if usual.get(name) != value]
    removals = [word for name in sorted(usual.keys() - plan.settings.keys()) for word in ("-u", name)]
    return ["env", *removals, *changes, *plan.command] if removals or changes else plan.command


def rank_of(process: psutil.Process) -> str:
    """The variable RANK that a process was started with; "" if it has none."""
    try:
        return process.environ().get("RANK", "")
    except psutil.Error:
        return ""


def _settings() -> dict[str, str]:
    """The variables of ranks, with gloo on the loopback interface, so that an odd host name does no harm."""
    own = {"PYTHONPATH": which_mpi.python_path(), "PYTHONUNBUFFERED": "1"}
    return which_mpi.environment() | own | {"GLOO_SOCKET_IFNAME": loopback()}
