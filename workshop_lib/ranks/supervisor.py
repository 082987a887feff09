"""Run a command, end it when whoever started this is gone, and write down how it ended.

Started by path with `python -S`, before anything else is imported, so it uses the standard library
alone. Two uses: around `mpiexec` and the controller, so that a killed notebook kernel leaves no process
behind; around each rank, with `--record FOLDER`, because only the parent of a process learns whether it
was killed, and by which signal, whatever the MPI. A rank also ends when that folder has gone, with which
whoever holds the ranks ends them on hosts that it cannot signal.

    python supervisor.py [--record FOLDER] -- COMMAND ...
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "ALPS_APP_PE")
PR_SET_PDEATHSIG = 1
LOOK_AT_FOLDER_EVERY_S = 2.0
LOOK_EVERY_S = 0.25  # whether the owner is still there; a signal, such as the child's end, wakes at once


def rank():
    return next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)


def before_exec():
    """In the child: interrupts as usual, and have Linux end it if this supervisor itself is killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def gone(folder):
    """Whether a shared folder was removed; an error that may pass, such as of the network, is not that."""
    try:
        os.stat(folder)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def write_record(folder, pid, returncode):
    record = {"rank": rank(), "host": socket.gethostname(), "pid": pid, "returncode": returncode, "time": time.time()}
    path = os.path.join(folder, f"exit.{record['rank']}.json")
    with open(path + ".tmp", "w") as file:
        json.dump(record, file)
    os.replace(path + ".tmp", path)


def end(child, grace_s):
    """Ask the child to end, then insist. A rank has nothing to tidy up, so it gets no grace."""
    if grace_s:
        child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def main():
    split = sys.argv.index("--")
    record_folder = sys.argv[2] if sys.argv[1] == "--record" else None
    owner = os.getppid()
    asked_to_end = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: asked_to_end.append(True))
    # An interrupt typed in a terminal goes to the whole group; only the notebook decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Popen.wait with a limit would look twenty times a second, and the ranks need the cores.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    child = subprocess.Popen(sys.argv[split + 1 :], preexec_fn=before_exec)
    next_look = time.monotonic() + LOOK_AT_FOLDER_EVERY_S
    while child.poll() is None:
        if record_folder and time.monotonic() > next_look:
            next_look = time.monotonic() + LOOK_AT_FOLDER_EVERY_S
            if gone(record_folder):
                asked_to_end.append(True)
        if asked_to_end or os.getppid() != owner:
            end(child, grace_s=0 if record_folder else 2)
            break
        if select.select([woken], [], [], LOOK_EVERY_S)[0]:
            os.read(woken, 4096)
    if record_folder and not gone(record_folder):
        write_record(record_folder, child.pid, child.returncode)
    sys.exit(child.returncode if child.returncode >= 0 else 128 - child.returncode)


if __name__ == "__main__":
    main()
