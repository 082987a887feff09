"""Run a command, end it when the process that started this supervisor is gone, and write down how it ended.

A supervisor is started by path with `python -S`, before anything else is imported, so it uses the standard library
alone. There are two uses. Around `mpiexec` and the controller, it makes sure that a killed notebook kernel leaves no
process behind. Around each rank, with `--record FOLDER`, it records how the rank ended, because with any MPI only the
parent of a process learns whether the process was killed, and by which signal. A rank also ends when that folder is
removed: this is how the holder of the ranks ends them on hosts to which it cannot send signals. While a rank is stopped
(SIGSTOP), a file beside its record says so. A rank that ends because another rank was lost first writes down where it
is.

    python supervisor.py [--owner PID] [--record FOLDER] -- COMMAND ...

The owner is the process that starts this supervisor, and may end before this supervisor can ask for its id.
"""

import contextlib
import ctypes
import glob
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "ALPS_APP_PE")
MPIEXECS_PLACE = "PRTE_MCA_prte_local_tmpdir_base"
PR_SET_PDEATHSIG = 1
LOOK_AT_FOLDER_EVERY_S = 2.0
LOOK_EVERY_S = 0.25  # how often to look for the owner; a signal, such as at the child's end, wakes this process at once
TIDY_LIMIT_S = 2.0
CGROUPS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "machine", "cgroups.py")
LAST_WORDS_LIMIT_S = 0.2  # time for a rank to write down its line; launchers kill it after a second


def rank():
    return next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)


def before_exec():
    """Prepare the child: it handles interrupts as usual, and Linux kills it if this supervisor itself is killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def gone(folder):
    """Whether a shared folder was removed. False on other errors, such as the network's, because they may pass."""
    try:
        os.stat(folder)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def write(folder, kind, contents):
    path = os.path.join(folder, kind, f"{rank()}.json")
    with open(path + ".tmp", "w") as file:
        json.dump({"rank": rank(), "host": socket.gethostname(), **contents}, file)
    os.replace(path + ".tmp", path)


def note_stops(folder, child):
    """Keep a file in `folder` for as long as the child is stopped. Only Linux tells a parent about that."""
    if not hasattr(os, "waitid"):
        return
    # Ask only whether the child was stopped or continued last. How it ended is left to Popen.
    change = os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
    if change and change.si_code == os.CLD_STOPPED:
        write(folder, "stopped", {"pid": child.pid, "signal": change.si_status})
    elif change:
        os.unlink(os.path.join(folder, "stopped", f"{rank()}.json"))


def last_words(folder, child):
    """If this rank must end because another one was lost, have it write down its line first (see engine.prepare)."""
    path = os.path.join(folder, f"stack.{rank()}.txt")
    if not glob.glob(os.path.join(folder, "exit", "*.json")) or not os.path.exists(path):
        return
    before = size = os.path.getsize(path)
    child.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + LAST_WORDS_LIMIT_S
    grows = True  # the stack arrives line by line, and is complete once the file stops growing
    while (size == before or grows) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
        grows = os.path.getsize(path) != size
        size = os.path.getsize(path)


def end(child, record_folder):
    """Ask the child to end, then kill it. A rank has nothing to clean up, so it is killed at once."""
    if record_folder is None:
        child.terminate()
        try:
            child.wait(TIDY_LIMIT_S)
        except subprocess.TimeoutExpired:
            pass
    elif not gone(record_folder):
        with contextlib.suppress(OSError):
            last_words(record_folder, child)
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


def why_killed(memory, killed_before):
    """Why Linux killed the child with SIGKILL, as the end of a sentence; empty if no limit tells."""
    if memory["killed_for_memory"]() > killed_before:
        gigabytes = memory["memory_bytes"]() / 1e9
        what = f"the memory of this container, job or machine ({gigabytes:.1f} GB) ran out"
        return f"{what}: start fewer ranks, or allow it more memory"
    allowed_s = resource.getrlimit(resource.RLIMIT_CPU)[1]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if allowed_s != resource.RLIM_INFINITY and used.ru_utime + used.ru_stime > 0.9 * allowed_s:
        return f"it had computed for {allowed_s} s, which is all that a process may here (`ulimit -t`)"
    return ""


def run(command, record_folder, owner):
    """Run the command until it ends by itself or has to be ended; return its exit code, or minus the signal's number.

    The command has to be ended if this process is asked to end, or its owner or the record folder is gone.
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
    if record_folder:
        memory = runpy.run_path(CGROUPS)
        killed_before = memory["killed_for_memory"]()
    # Launchers send signals to process groups. A rank in a group of its own lives long enough to say where it is.
    group = 0 if record_folder else None
    child = subprocess.Popen(command, preexec_fn=before_exec, process_group=group)
    next_look = time.monotonic() + LOOK_AT_FOLDER_EVERY_S
    while child.poll() is None:
        if record_folder and time.monotonic() > next_look:
            next_look = time.monotonic() + LOOK_AT_FOLDER_EVERY_S
            if gone(record_folder):
                asked_to_end.append(True)
        if asked_to_end or os.getppid() != owner:
            end(child, record_folder)
            break
        if select.select([woken], [], [], LOOK_EVERY_S)[0]:
            os.read(woken, 4096)
            if record_folder:
                with contextlib.suppress(OSError):  # the folder may be disappearing
                    note_stops(record_folder, child)
    if record_folder and not gone(record_folder):
        how = {"pid": child.pid, "returncode": child.returncode, "asked": bool(asked_to_end), "time": time.time()}
        if child.returncode == -signal.SIGKILL:
            how["why"] = why_killed(memory, killed_before)
        write(record_folder, "exit", how)
    return child.returncode


def main():
    split = sys.argv.index("--")
    options = dict(zip(sys.argv[1:split:2], sys.argv[2:split:2], strict=True))
    record_folder = options.get("--record")
    owner = int(options.get("--owner", os.getppid()))
    with contextlib.nullcontext() if record_folder else place_of_its_own():
        status = run(sys.argv[split + 1 :], record_folder, owner)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
