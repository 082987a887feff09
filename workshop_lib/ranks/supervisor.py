"""Run a command, and end it when the process that started this supervisor is gone.

A supervisor around `mpiexec`, torchrun or another program makes sure that a killed notebook kernel leaves no process
behind. It is started by path with `python -S`, before anything else is imported, so it uses the standard library
alone. Ranks are watched by their agent instead (node_agent.py).

    python supervisor.py [--owner PID] -- COMMAND ...

The owner is the process that starts this supervisor, and may end before this supervisor can ask for its id.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile

MPIEXECS_PLACE = "PRTE_MCA_prte_local_tmpdir_base"
PR_SET_PDEATHSIG = 1
LOOK_EVERY_S = 0.25  # how often to look for the owner; a signal, such as at the child's end, wakes this process at once
TIDY_LIMIT_S = 2.0


def before_exec():
    """Prepare the child: it handles interrupts as usual, and Linux kills it if this supervisor itself is killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end(child):
    """Ask the child to end, then kill it."""
    child.terminate()
    try:
        child.wait(TIDY_LIMIT_S)
    except subprocess.TimeoutExpired:
        pass
    child.kill()
    child.wait()


@contextlib.contextmanager
def place_of_its_own():
    """Give Open MPI's mpiexec a private place for its folder, unless the site has chosen a place.

    mpiexec names its folder by its process id alone, and leaves the folder behind when it is killed. If one were left
    in /tmp, by any user, the next mpiexec with the same process id would refuse to start.
    """
    if {MPIEXECS_PLACE, "PRTE_MCA_prte_tmpdir_base"} & os.environ.keys():
        yield
        return
    place = os.path.join(tempfile.gettempdir(), f"workshop-mpi-{os.urandom(8).hex()}")
    os.environ[MPIEXECS_PLACE] = place
    try:
        yield
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run(command, owner):
    """Run the command until it ends by itself or has to be ended; return its exit code, or minus the signal's number.

    The command has to be ended if this process is asked to end, or its owner is gone.
    """
    asked_to_end = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: asked_to_end.append(True))
    # An interrupt typed in a terminal goes to the whole group; only the notebook decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Popen.wait with a limit would look at the child twenty times a second, but the ranks need the cores.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    child = subprocess.Popen(command, preexec_fn=before_exec)
    while child.poll() is None:
        if asked_to_end or os.getppid() != owner:
            end(child)
            break
        if select.select([woken], [], [], LOOK_EVERY_S)[0]:
            os.read(woken, 4096)
    return child.returncode


def main():
    split = sys.argv.index("--")
    options = dict(zip(sys.argv[1:split:2], sys.argv[2:split:2], strict=True))
    owner = int(options.get("--owner", os.getppid()))
    with place_of_its_own():
        status = run(sys.argv[split + 1 :], owner)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
