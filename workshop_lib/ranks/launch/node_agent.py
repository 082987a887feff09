"""One process per host that makes ranks, watches them, and writes down how each of them ended.

Importing PyTorch takes a rank two seconds of a core. So the agent imports what every rank needs once, and a rank is a
fork of the agent, which is there in milliseconds and shares the agent's memory. mpiexec does not start ranks but stubs
(stub.py), one per rank. A stub asks the agent for its rank over a socket, and hands over its environment, working
folder, limits, cores and open files, so the rank joins MPI in the stub's place. The agent learns about signals for the
rank from the stub, and the stub learns from the agent how the rank ended.

Where nothing was imported (no `--load`), or a fork would not be safe, the child of the agent executes the command
instead, like any other process.

Only the parent of a process learns whether the process was killed, and by which signal. So the agent writes a file
when a rank ends, and keeps another one while a rank is stopped (SIGSTOP). A rank that has to end because another one
was lost first writes down where it is. All ranks end when the agent, its owner or the ranks' folder is gone.

    python node_agent.py --socket PATH [--owner PID] [--load MODULE]

An agent without an owner was started by the first stub on a host, and ends with its last rank. This file uses the
standard library alone, because it is started by path.
"""

import contextlib
import ctypes
import gc
import glob
import importlib
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import sys
import time
import types

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "ALPS_APP_PE")
MARK = "WORKSHOP_RANKS"
PR_SET_PDEATHSIG = 1
LIBRARY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CGROUPS = os.path.join(LIBRARY, "machine", "cgroups.py")
LOOK_EVERY_S = 0.25  # how often to look for the owner; a request, or a child's end, wakes the agent at once
LOOK_AT_LAST_WORDS_EVERY_S = 0.02
LOOK_AT_FOLDERS_EVERY_S = 2.0
LAST_WORDS_LIMIT_S = 0.2  # time for a rank to write down its line; launchers kill it after a second
TIDY_LIMIT_S = 2.0  # time for a command that is not a rank, after SIGTERM
FIRST_RANK_LIMIT_S = 60.0
KILLED_FIRST = "300"  # when memory runs out, Linux rather kills a rank than the agent, which would take all along
ASK_LIMIT_S = 30.0  # time for a stub to send its whole request, also where forty people start ranks at once
CPU_MARGIN_S = 0.5  # Linux ends a process this early or late when its CPU time is used up
USUAL_STACK_BYTES = 8 * 1024 * 1024
DESCRIPTORS = 64  # the most open files that come with a request


def gone(folder):
    """Whether a shared folder was removed. False on other errors, such as the network's, because they may pass."""
    try:
        os.stat(folder)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def one_thread():
    """Whether this process has no other thread, whose locks a fork would never see released."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def write(path, text):
    """Write to a file of the kernel's, if there is such a file and this is allowed."""
    with contextlib.suppress(OSError), open(path, "w") as file:
        file.write(text)


def what_ended(returncode, cpu_s, limits, memory, killed_before):
    """Which of this host's limits ended a process with this exit code, as the end of a sentence; empty if none did.

    cpu_s: the seconds that it computed. limits: its limits, (soft, hard) by number. memory: the functions of
    machine/cgroups.py. killed_before: what killed_for_memory() was when the process began.
    """
    cpu_limit_s, file_limit, stack_limit = (
        min((value for value in limits[number] if value != resource.RLIM_INFINITY), default=float("inf"))
        for number in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_STACK)
    )
    if returncode == -signal.SIGXCPU or (returncode == -signal.SIGKILL and cpu_s > cpu_limit_s - CPU_MARGIN_S):
        what = f"it had used all the CPU time that a process may use here ({cpu_limit_s:g} s, `ulimit -t`)"
        return f"{what}: raise that limit, or start this in a job"
    if returncode == -signal.SIGXFSZ:
        what = f"it wrote a file larger than files may be here ({file_limit / 1e6:g} MB, `ulimit -f`)"
        return f"{what}: raise that limit"
    if returncode == -signal.SIGKILL and memory["killed_for_memory"]() > killed_before:
        gigabytes = memory["memory_bytes"]() / 1e9
        what = f"the memory of this container, job or machine ({gigabytes:.1f} GB) ran out"
        return f"{what}: start fewer ranks, or allow it more memory"
    if returncode == -signal.SIGSEGV and stack_limit < USUAL_STACK_BYTES:
        what = f"its stack, which may only have {stack_limit / 1e6:.2g} MB here (`ulimit -s`), may have been full"
        return f"{what}: raise that limit"
    return ""


def receive(connection):
    """A request and the open files that came with it. Raises OSError or ValueError if it does not arrive whole."""
    connection.settimeout(ASK_LIMIT_S)
    length, descriptors, _, _ = socket.recv_fds(connection, 8, DESCRIPTORS)
    text = b""
    while len(text) < int.from_bytes(length, "big"):
        part = connection.recv(1 << 20)
        if not part:
            raise ValueError("the request ended early")
        text += part
    connection.setblocking(False)
    return json.loads(text), descriptors


class Child:
    """A process that the agent made for a stub, or for the ranks' owner."""

    def __init__(self, pid, connection, request, memory, killed_before):
        self.pid = pid
        self.connection = connection
        self.folder = request["record"]  # where to write how a rank ended; None for a command that is not a rank
        variables = request["environment"]
        self.rank = next((int(variables[name]) for name in RANK_VARIABLES if name in variables), 0)
        self.limits = {int(number): pair for number, pair in request["limits"].items()}
        self.memory = memory  # the functions of machine/cgroups.py
        self.killed_before = killed_before
        self.asked = False  # whether it was asked to end
        self.kill_at = None  # the time at which it is killed
        self.words = None  # how much a rank had written when it was asked where it is

    def write(self, kind, contents):
        path = os.path.join(self.folder, kind, f"{self.rank}.json")
        with open(path + ".tmp", "w") as file:
            json.dump({"rank": self.rank, "host": socket.gethostname(), "pid": self.pid, **contents}, file)
        os.replace(path + ".tmp", path)

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self):
        """Ask the child to end. A rank has nothing to clean up, so it only says where it is, and is killed."""
        self.asked = True
        if self.kill_at is not None:
            return
        self.kill_at = time.monotonic()
        if self.folder is None:
            self.send_signal(signal.SIGTERM)
            self.kill_at += TIDY_LIMIT_S
        elif not gone(self.folder) and self._lost_another() and os.path.exists(self._stack()):
            self.words = self.words_before = os.path.getsize(self._stack())
            self.send_signal(signal.SIGUSR1)
            self.kill_at += LAST_WORDS_LIMIT_S
        self.look()

    def look(self):
        """Kill a child that was asked to end once it is time, or once a rank has written down where it is."""
        if self.kill_at is None:
            return
        if self.words is not None:
            with contextlib.suppress(OSError):
                size = os.path.getsize(self._stack())
                # The stack arrives line by line, and is complete once the file stops growing.
                if size == self.words and size > self.words_before:
                    self.kill_at = 0.0
                self.words = size
        if time.monotonic() >= self.kill_at:
            self.send_signal(signal.SIGKILL)

    def stopped(self, number):
        """Keep a file beside the record for as long as the child is stopped."""
        if self.folder is not None:
            with contextlib.suppress(OSError):  # the folder may be disappearing
                self.write("stopped", {"signal": number})

    def continued(self):
        if self.folder is not None:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.folder, "stopped", f"{self.rank}.json"))

    def ended(self, returncode, cpu_s):
        """Write down how a rank ended, and tell the stub. returncode: minus the signal's number after a signal."""
        why = what_ended(returncode, cpu_s, self.limits, self.memory, self.killed_before)
        if self.folder is not None and not gone(self.folder):
            how = {"returncode": returncode, "asked": self.asked, "time": time.time()}
            if why:
                how["why"] = why
            with contextlib.suppress(OSError):
                self.write("exit", how)
        with contextlib.suppress(OSError):  # the stub may be gone
            self.connection.send(f"{returncode} {why}".encode())
        self.connection.close()

    def _stack(self):
        return os.path.join(self.folder, f"stack.{self.rank}.txt")

    def _lost_another(self):
        return bool(glob.glob(os.path.join(self.folder, "exit", "*.json")))


class NodeAgent:
    def __init__(self, path, owner, loads):
        self.path = path
        self.owner = owner
        self.loads = loads
        self.memory = runpy.run_path(CGROUPS)
        self.asked_to_end = False
        self.children = {}  # by process id
        self.served = False  # whether there was a child yet
        self.began = time.monotonic()
        self.next_look_at_folders = 0.0
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._ask_to_end)
        # An interrupt typed in a terminal goes to the whole group; only the notebook decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.woken, self.wake = os.pipe()
        os.set_blocking(self.wake, False)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path + ".new")
        self.listener.listen(256)
        os.replace(path + ".new", path)  # whoever sees this path can connect

    def _ask_to_end(self, *_):
        self.asked_to_end = True

    def serve(self):
        """Serve until the owner is gone. In a child that is to run a command of Python itself, return its words."""
        while not self._over():
            sockets = {child.connection: child for child in self.children.values() if not child.asked}
            waits_for_words = any(child.kill_at is not None for child in self.children.values())
            limit_s = LOOK_AT_LAST_WORDS_EVERY_S if waits_for_words else LOOK_EVERY_S
            readable = select.select([self.woken, self.listener, *sockets], [], [], limit_s)[0]
            if self.woken in readable:
                os.read(self.woken, 4096)
            for connection in readable:
                if connection in sockets:
                    self._hear(sockets[connection])
            self._look_after_children()
            if self.listener in readable:
                words = self._accept()
                if words is not None:
                    return words
        self._end_all()
        return None

    def _over(self):
        if self.asked_to_end or (self.owner is not None and os.getppid() != self.owner):
            return True
        if self.owner is None and not self.children:
            return self.served or time.monotonic() > self.began + FIRST_RANK_LIMIT_S
        return False

    def _hear(self, child):
        """A stub sends a byte, the number of the signal it got; it ends by itself only if it is killed."""
        with contextlib.suppress(OSError):
            child.connection.recv(64)
        child.end()

    def _look_after_children(self):
        if time.monotonic() > self.next_look_at_folders:
            self.next_look_at_folders = time.monotonic() + LOOK_AT_FOLDERS_EVERY_S
            for child in self.children.values():
                if child.folder is not None and gone(child.folder):
                    child.end()
        for pid, child in list(self.children.items()):
            child.look()
            changed, status, usage = os.wait4(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if not changed:
                continue
            if os.WIFSTOPPED(status):
                child.stopped(os.WSTOPSIG(status))
            elif os.WIFCONTINUED(status):
                child.continued()
            else:
                del self.children[pid]
                child.ended(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime)

    def _end_all(self):
        for child in self.children.values():
            child.end()
        while self.children:
            time.sleep(LOOK_AT_LAST_WORDS_EVERY_S)
            self._look_after_children()

    def _accept(self):
        """Make the process that a stub asks for. Returns the words of its command in that process, else None."""
        connection, _ = self.listener.accept()
        try:
            request, descriptors = receive(connection)
        except (OSError, ValueError) as error:
            print(f"a request was not understood: {error}", file=sys.stderr, flush=True)
            connection.close()
            return None
        words = request["command"]
        # A fork can go on only as another program of Python that is given as text (`python -P -c`).
        stays_a_fork = self.loads and words[1:3] == ["-P", "-c"] and one_thread()
        killed_before = self.memory["killed_for_memory"]()
        pid = os.fork()
        if pid == 0:
            self._forget(connection)
            become(request, descriptors, stays_a_fork)
            return words
        for descriptor in descriptors:
            os.close(descriptor)
        self.served = True
        self.children[pid] = Child(pid, connection, request, self.memory, killed_before)
        return None

    def _forget(self, connection):
        """In a child: drop the agent's signal handlers and sockets, without closing what gets their numbers later."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for each in (self.listener, connection, *(child.connection for child in self.children.values())):
            each.detach()


def become(request, descriptors, stays_a_fork):
    """Make this new process what the stub would have become: its environment, folder, limits, cores and open files.

    stays_a_fork: whether the process goes on as it is, with what the agent imported. If not, it executes the command.
    """
    try:
        agent = os.getppid()
        if request["record"] is None:
            os.setsid()  # Linux shares cores among sessions first, and mpiexec starts many processes
        else:
            os.setpgid(0, 0)  # launchers signal process groups, and a rank lives long enough to say where it is
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != agent:  # it ended before it could take this process along
                os._exit(1)
            write("/proc/self/oom_score_adj", KILLED_FIRST)
        place(descriptors, request["descriptors"])
        os.chdir(request["folder"])
        for name, limits in request["limits"].items():
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(int(name), limits)
        if request["cores"]:
            with contextlib.suppress(OSError):  # the stub may have been allowed cores that the agent is not
                os.sched_setaffinity(0, request["cores"])
        if not stays_a_fork:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvpe(request["command"][0], request["command"], request["environment"])
        relabel(request["environment"].get(MARK, ""), request["command"])
        os.environ.clear()
        os.environ.update(request["environment"])
    except BaseException as error:
        print(f"a process could not be made: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(127)


def place(descriptors, numbers):
    """Give the received open files the numbers that they have in the stub, and close everything else."""
    import fcntl

    # Above all these numbers, no file is in another one's way.
    above = max([*descriptors, *numbers]) + 1
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
    for descriptor, number in zip(high, numbers, strict=True):
        os.dup2(descriptor, number)
    end = 3
    for number in sorted(number for number in numbers if number > 2):
        os.closerange(end, number)
        end = number + 1
    os.closerange(end, os.sysconf("SC_OPEN_MAX"))


def relabel(mark, words):
    """Let /proc show this process with the mark of its ranks, and with its own command.

    /proc shows what a process was started with. A fork shows its agent's, so that is overwritten there. The marks of
    ranks and of their agent have the same length, because they name the same owner.
    """
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    # arg_start, arg_end, env_start and env_end, fields 48 to 51 of the manual page proc(5)
    words_start, words_end, start, end = (int(field) for field in fields[45:49])
    length = words_end - words_start
    ctypes.memmove(words_start, "\0".join(words).encode()[: length - 1].ljust(length - 1) + b"\0", length)
    old = f"{MARK}={os.environ.get(MARK, '')}".encode()
    new = f"{MARK}={mark}".encode()
    offset = ctypes.string_at(start, end - start).find(old + b"\0")
    if offset < 0 or len(new) != len(old):
        raise ValueError(f"the mark {mark!r} does not fit over the agent's")
    ctypes.memmove(start + offset, new, len(new))


def run_as_python(words):
    """Run `python -P -c SOURCE ARGUMENT ...` in this process, as Python itself would."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["-c", *words[4:]]
    sys.orig_argv = list(words)
    exec(compile(words[3], "<string>", "exec"), module.__dict__)


def main():
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    loads = options.get("--load")
    folder = os.path.dirname(options["--socket"])
    if loads:
        os.environ["TMPDIR"] = folder  # PyTorch makes a folder for compiled code there
        importlib.import_module(loads)
        gc.collect()
        gc.freeze()  # so that no search for garbage touches, and so copies, the memory that forks share
    owner = options.get("--owner")
    agent = NodeAgent(options["--socket"], int(owner) if owner else None, bool(loads))
    words = agent.serve()
    if words is not None:
        run_as_python(words)
        return
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
