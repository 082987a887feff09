"""Which processes belong to which notebook, found by a mark in their environment.

The mark is WORKSHOP_RANKS = "<set>@<host>/<PID namespace>/<pid>/<start>", and all but the set is of the set's owner.
Every process started for a set of ranks inherits the mark, and keeps it no matter what happens to the processes in
between. So the owner of a set, or the next start beside the owner, can always find and end what is left of the set.
A process id means another process in another PID namespace, such as a container's, so nobody judges an owner there.
"""

import contextlib
import os
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import psutil

VARIABLE = "WORKSHOP_RANKS"


def new_set_id() -> str:
    """A name for a set of processes that no other set has; all such names have the same length."""
    return uuid.uuid4().hex[:12]


def mark(set_id: str) -> str:
    """The value of WORKSHOP_RANKS for a set of ranks owned by this process."""
    return f"{set_id}@{socket.gethostname()}/{pid_namespace()}/{os.getpid()}/{start_of(os.getpid())}"


def pid_namespace() -> str:
    """A name for where an id means the same process as here: this PID namespace, since this machine was booted."""
    if sys.platform != "linux":
        return "host"
    boot = ""
    with contextlib.suppress(OSError):  # some containers hide it
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"


def can_see_processes() -> bool:
    """Whether /proc shows the processes of this PID namespace. In a new namespace, it may still show the old one's."""
    return sys.platform != "linux" or os.readlink("/proc/self") == str(os.getpid())


def stat_fields(stat: Path) -> list[str]:
    """The fields behind the name in a file of /proc that proc(5) calls stat. Raises OSError if the process is gone."""
    return stat.read_text().rpartition(")")[2].split()


def start_of(pid: int) -> str | None:
    """When a process started, as a text that is the same in every process that asks; None if it is gone.

    Linux counts from boot. psutil's absolute time would not do there, because it moves with the clock: if the clock
    were corrected, the owner of running ranks would look like a different process.
    """
    if sys.platform == "linux":
        try:
            fields = stat_fields(Path(f"/proc/{'self' if pid == os.getpid() else pid}/stat"))
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    try:
        return f"{psutil.Process(pid).create_time():.0f}"
    except psutil.NoSuchProcess:
        return None


def with_mark(pid: int, mark: str) -> psutil.Process | None:
    """The process with this id if it has this mark, else None: the id may belong to a different process by now."""
    try:
        process = psutil.Process(pid)
        return process if process.environ().get(VARIABLE) == mark else None
    except (psutil.Error, OSError):
        return None


class Owner(NamedTuple):
    """The process that a mark names."""

    host: str
    pid_namespace: str
    pid: int
    start: str

    def can_be_seen(self) -> bool:
        """Whether this process would find the owner by its id."""
        here = (socket.gethostname(), pid_namespace())
        return (self.host, self.pid_namespace) == here and can_see_processes()

    def is_gone(self) -> bool:
        """Whether the owner has ended. Its id must mean the same process here: see `can_be_seen`."""
        return start_of(self.pid) != self.start


def owner_of(mark: str) -> Owner | None:
    """The owner that a mark names; None if the mark is not of this form."""
    try:
        host, namespace, pid, start = mark.partition("@")[2].split("/")
        return Owner(host, namespace, int(pid), start)
    except ValueError:
        return None


def marked(set_id: str | None = None) -> list[tuple[psutil.Process, str]]:
    """This user's marked processes on this machine, each with its mark: those of one set, or of all sets."""
    found: list[tuple[psutil.Process, str]] = []
    if not can_see_processes():
        return found  # a signal to one of the ids in /proc would reach a different process
    for process in psutil.process_iter():
        try:
            value = process.environ().get(VARIABLE, "")
        except (psutil.Error, OSError):
            continue
        name = value.partition("/")[0].partition("@")[0]
        if value and process.pid != os.getpid() and set_id in (None, name):
            found.append((process, value))
    return found


def strays() -> list[psutil.Process]:
    """Processes that dead notebooks left behind."""
    owners = [(process, owner_of(mark)) for process, mark in marked()]
    return [process for process, owner in owners if owner and owner.can_be_seen() and owner.is_gone()]


def kill(processes: list[psutil.Process], wait_s: float = 3.0) -> None:
    """End these processes at once and wait until they are gone (at most `wait_s`)."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    deadline = time.monotonic() + wait_s
    while any(map(_runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)


def _runs(process: psutil.Process) -> bool:
    """Whether a process still does anything; a zombie only waits for its parent to notice."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(set_id: str) -> None:
    """Kill all processes that are left of one set."""
    kill([process for process, _ in marked(set_id)])


def reap() -> int:
    """Kill every stray process; return how many there were."""
    left = strays()
    kill(left)
    return len(left)
