"""What mpiexec starts for each rank: it has the agent of its host make the rank, and ends as the rank does.

    python stub.py --record FOLDER [--agent SOCKET] [--load MODULE] -- COMMAND ...

Without a socket, the stubs on a host share an agent that the first of them starts. A stub hands its environment, its
working folder, its limits, its cores and its open files over, and then passes on signals and the exit code. The rest
is the agent's work (node_agent.py). This file uses the standard library alone, because it is started by path.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time

AGENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "node_agent.py")
AGENT_LIMIT_S = 120.0  # many nodes read Python from one shared disk
LOOK_EVERY_S = 0.25  # how often to look for the launcher
# A socket's path may have at most 107 characters, and the names of Python's sockets in such a folder take up to 40.
LONGEST_PATH = 50


def descriptors():
    """The numbers of this process's open files, other than the one that lists them."""
    try:
        listed = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        listed = [0, 1, 2]
    found = []
    for number in sorted(listed):
        with contextlib.suppress(OSError):  # the list was open itself while it was read
            os.fstat(number)
            found.append(number)
    return found


def limits():
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {number: resource.getrlimit(number) for number in {getattr(resource, name) for name in names}}


def ask(connection, command, record, environment, files, folder=None):
    """Ask the agent at the other end to make a process with this environment.

    record: the folder in which to write how it ended, if it is a rank. files: the open files that it gets, by the
    number that each has there. folder: where it runs, by default where this process does.
    """
    request = {
        "command": command,
        "record": record,
        "environment": environment,
        "folder": folder or os.getcwd(),
        "limits": limits(),
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "descriptors": list(files),
    }
    text = json.dumps(request).encode()
    socket.send_fds(connection, [len(text).to_bytes(8, "big")], list(files.values()))
    connection.sendall(text)


def temporary_folder():
    """Where temporary folders are created: the user's choice, unless paths of sockets in it would be too long."""
    try:
        place = tempfile.gettempdir()
    except OSError:  # no temporary folder can be written
        return "/tmp"
    return place if len(place) <= LONGEST_PATH else "/tmp"


def agent_of_this_host(record, load):
    """The socket of the agent that the stubs on this host share; the first stub starts the agent."""
    # The host's name is in it, because several hosts may share this folder.
    place = os.path.join(temporary_folder(), f"workshop-{os.path.basename(record)}-{socket.gethostname()[:20]}")
    path = os.path.join(place, "agent")
    try:
        os.mkdir(place, 0o700)
    except FileExistsError:
        if os.stat(place).st_uid != os.getuid():
            raise PermissionError(f"{place} belongs to somebody else") from None
        return path
    if os.fork() == 0:
        os.setsid()
        log = os.open(os.path.join(record, f"agent.{socket.gethostname()}.log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        for number, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
            os.dup2(number, target)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        flags = ["-P"] if load else ["-I", "-S"]
        words = [sys.executable, *flags, AGENT, "--socket", path]
        os.execv(sys.executable, [*words, "--load", load] if load else words)
    return path


def connect(path):
    """A connection to the agent, which may still be starting. Raises OSError if there is none in time."""
    deadline = time.monotonic() + AGENT_LIMIT_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
            return connection
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def main():
    split = sys.argv.index("--")
    options = dict(zip(sys.argv[1:split:2], sys.argv[2:split:2], strict=True))
    owner = os.getppid()
    record = options["--record"]
    files = {number: number for number in descriptors()}
    path = options.get("--agent") or agent_of_this_host(record, options.get("--load"))
    connection = connect(path)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the notebook decides what an interrupt means
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: connection.send(bytes([number])))
    ask(connection, sys.argv[split + 1 :], record, dict(os.environ), files)
    while not select.select([connection], [], [], LOOK_EVERY_S)[0]:
        if os.getppid() != owner:  # the launcher was killed, and so its signals don't come
            connection.send(bytes([signal.SIGTERM]))
            owner = os.getppid()
    answer = connection.recv(1024)
    # Without an answer, the agent was killed, and took its ranks.
    status = int(answer.split()[0]) if answer else -signal.SIGKILL
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
