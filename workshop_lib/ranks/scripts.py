"""Run a script in processes of its own, as from a terminal, but bounded and with nothing left behind."""

import os
import shlex
import subprocess
import sys
import threading
import uuid
from pathlib import Path

from workshop_lib.training.world import loopback

from . import mpi, processes
from .cluster import SUPERVISOR
from .errors import RankError


def run(*command, timeout_s: float = 120.0) -> None:
    """Run `command` to its end, and print what it prints.

    The first word may name a program that is installed beside this Python, such as `torchrun`. Each process
    computes with one thread, as the ranks of a notebook do. Raises RankError when the command fails, or
    does not end within `timeout_s` seconds; all its processes are ended then, also those in sessions
    of their own, as torchrun's are, and when this process itself is killed.
    """
    words = [str(word) for word in command]
    print("$", shlex.join(words), flush=True)
    set_id = uuid.uuid4().hex[:12]
    process = subprocess.Popen(
        [*SUPERVISOR, "--", _beside_python(words[0]), *words[1:]],
        env=os.environ | _settings() | {processes.VARIABLE: processes.mark(set_id)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    too_long = threading.Event()

    def end() -> None:
        too_long.set()
        processes.end(set_id)

    timer = threading.Timer(timeout_s, end)
    timer.start()
    assert process.stdout is not None
    try:
        for line in process.stdout:  # ends when the last process that could write has ended
            print(line, end="", flush=True)
        status = process.wait()
    finally:
        timer.cancel()
        processes.end(set_id)
        process.stdout.close()
        process.wait()
    if too_long.is_set():
        raise RankError(f"`{shlex.join(words)}` had not finished after {timeout_s:g} s, so it was ended.")
    if status:
        raise RankError(f"`{shlex.join(words)}` ended with exit code {status}; the lines above say why.")


def _beside_python(program: str) -> str:
    path = Path(sys.executable).parent / program
    return str(path) if path.exists() else program


def _settings() -> dict[str, str]:
    """As for ranks; gloo on the loopback interface, so that a strange host name does no harm."""
    own = {"PYTHONPATH": mpi.python_path(), "PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": loopback()}
    return mpi.environment() | own
