"""A set of MPI ranks that a notebook starts, uses, restarts and stops."""

import atexit
import contextlib
import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from workshop_lib.errors import InputError
from workshop_lib.machine import catalogue
from workshop_lib.machine.emulation import session as emulation
from workshop_lib.machine.forks import unless_forked
from workshop_lib.ranks.call import cells, engine
from workshop_lib.ranks.call.view import TextView
from workshop_lib.ranks.call.watch import watch
from workshop_lib.ranks.faults.rank_errors import RankError, how_it_ended, remember_source
from workshop_lib.ranks.owned import remove
from workshop_lib.words import plural

from . import agents, allocation, crowding, folders, launchers, limits, processes, scratch, which_mpi
from .allocation import is_here

UNNAMED = "cell"
ABOUT_LIMIT_S = 30.0
ASK_AGAIN_S = 1.0  # the controller drops messages to a rank that has registered, but is not connected to it yet
LAST_WORDS_LIMIT_S = 5.0
NOTICE_LIMIT_S = 2.0
# Many nodes read Python from one shared disk.
START_LIMIT_S = 60.0
START_ELSEWHERE_LIMIT_S = 180.0
START_LIMIT_PER_RANK_S = 1.0  # two cores start a rank in half a second
# The controller and the engines keep the current folder out of their search path while they load (-P), and import
# workshop_lib first: see shadowing.py.
# It makes a record of every message for its log, whatever the level of the log is, unless logging is off.
CONTROLLER_MAIN = (
    "import logging, workshop_lib; logging.disable(logging.INFO); from ipyparallel.controller.app import main; main()"
)
CONTROLLER = [sys.executable, "-P", "-c", CONTROLLER_MAIN]
# Before anything else, a rank removes variables that harm it, which its host's own profile may have set.
# It blocks debugpy, because importing it takes a fifth of an engine's start; engine.prepare unblocks it.
ENGINE_MAIN = (
    "import sys; from workshop_lib.machine import environment; environment.clean(); "
    "sys.modules['debugpy'] = None; from ipyparallel.engine.app import main; main()"
)
ENGINE = [sys.executable, "-P", "-c", ENGINE_MAIN, "--mpi"]
# A nanny is a process beside each rank that passes on signals from other hosts. Ranks on this host need none, because
# the notebook sends them signals directly.
WITHOUT_NANNY = ["--IPEngine.enable_nanny=False"]
# One heartbeat every 0.1 s instead of every 3 s lets ranks register sooner. Many ranks get fewer, so that the
# controller handles about a hundred per second. A rank counts as lost after 30 s without a heartbeat, far longer than
# any computation delays one.
HEARTBEAT_EVERY_MS = 100
HEARTBEAT_EVERY_MS_PER_RANK = 10
HEARTBEAT_LIMIT_MS = 30_000
# By default, the controller keeps a copy of every message and result in memory, for clients that ask again later.
NO_COPIES = ["--nodb"]
PORT_TAKEN = "Address already in use"
START_TRIES = 3  # forty people who start ranks at once on one machine take about 600 ports
# Files in the ranks' folder.
CONTROLLER_LOG = "controller.log"
RANKS_LOG = "ranks.log"
REACHABLE = ["--ip=*"]  # other hosts can connect, with the key in the ranks' folder, which only its owner can read


class Current:
    """The notebook's current ranks: one set, or none."""

    def __init__(self):
        self.team: Ranks | None = None
        self.busy_cores_noted = False  # whether the notebook has said that other programs use the cores

    def replace(self, team: "Ranks | None") -> None:
        """Make `team` the notebook's current ranks (None: no ranks), and stop any different ones."""
        if self.team is not None and self.team is not team:
            self.team.stop()
        self.team = team


CURRENT = Current()


def check_number(n) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(f"The number of ranks is {n!r}; it must be a whole number, at least 1.")


def _heartbeat(n: int) -> list[str]:
    period_ms = max(HEARTBEAT_EVERY_MS, HEARTBEAT_EVERY_MS_PER_RANK * n)
    misses = HEARTBEAT_LIMIT_MS // period_ms
    return [f"--HeartMonitor.period={period_ms}", f"--HeartMonitor.max_heartmonitor_misses={misses}"]


def _end(made: list[agents.Made], set_id: str, folder: Path, own: scratch.Scratch) -> None:
    # First ask mpiexec to terminate, so that it ends ranks on other nodes; then kill everything that is left here.
    for process in made[1:]:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(4)
    processes.end(set_id)
    for process in made:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(4)
    remove(folder)
    own.remove()


class Ranks:
    """MPI ranks in ipyparallel engines; engine id = MPI rank = position in every list of results.

    An agent makes the controller, `mpiexec` and the ranks, so all of them end when this process ends, no matter how it
    ends. `ipyparallel.Cluster` could not promise that.
    """

    view: Callable[..., TextView] | None = None  # what shows a call; the notebook package sets its own
    attached_only = False  # whether another process holds these ranks
    holder_host = ""  # the host of that process
    machine: str | None = None
    busy = False  # whether a call is under way
    asked: Any = None  # the AsyncResult of the last question to rank 0
    _user: int  # the process that is connected to these ranks
    _ending: threading.Thread | None = None  # ends ranks that were given up
    positions: Mapping[int, str] = {}  # where each rank was when a call last failed, in words

    def __init__(self, n: int, threads_per_rank: int = 1, bind: str = "none", machine: str | None = None):
        self.shape: tuple[int, int | None, str | None] = (n, threads_per_rank, bind)
        self.machine = machine  # what the ranks emulate, or None
        self.trouble: str | None = "they were never started"  # None if the ranks can take a call
        self.client: Any = None  # an ipyparallel.Client
        self._made: list[agents.Made] = []  # the controller and mpiexec
        self._end: Callable[[], None] = lambda: None
        self._start()

    @property
    def remedy(self) -> str:
        """How to get fresh ranks, as the end of an error message."""
        return f"`team.restart()` brings fresh ones. {self.empty_memory}"

    @property
    def empty_memory(self) -> str:
        """A sentence that says that fresh ranks have no variables, and which cells to run again."""
        cells = [name for name in dict.fromkeys(self._cells.values()) if name != UNNAMED]
        return f"Their memory is empty: run {', '.join(cells)} again." if cells else "Their memory is empty."

    @property
    def n(self) -> int:
        return self.shape[0]

    @property
    def healthy(self) -> bool:
        """Whether the ranks can take the next call."""
        if self.trouble is None and os.getpid() != self._user:
            self.trouble = "they belong to the process that this one was forked from"
        if self.trouble is None and self.is_lost():
            records = folders.exit_records(self.folder)
            how = "rank {rank} on {host} ".format(**records[0]) + how_it_ended(records[0]) if records else ""
            self.give_up(how or "a rank or its launcher ended while nothing was running")
        return self.trouble is None

    def __repr__(self):
        state = "ready" if self.healthy else f"stopped: {self.trouble}"
        emulated = f", emulating {catalogue.label(self.machine)}" if self.machine else ""
        return f"<{plural(self.n, 'MPI rank')}, {state}{emulated}>"

    def run(self, function, /, *args, timeout: float = 120.0, show: bool | TextView = True, **kwargs) -> list:
        """Call `function(*args, **kwargs)` on every rank; returns the results in rank order.

        Whatever a rank prints appears with its rank in front; `show` may also be False, or a view that shows it.
        If a rank fails or the call takes longer than `timeout` seconds, this raises a RankError that says which rank
        failed and on which line every other rank was. The error comes at once if a rank has ended, within 3 s if the
        other ranks wait for the failed rank in a collective, and within 15 s if they do something else. Afterwards the
        ranks may need `restart()`; the error says so.
        Raises InputError unless `timeout` is above 0.
        """
        return self._run((function, args, kwargs), timeout, show)

    def run_cell(self, source: str, name: str = UNNAMED, timeout: float = 120.0, on: list[int] | None = None) -> None:
        """Run a cell's source on every rank, or on those of `on`, in the ranks' own namespace.

        If a collective or a message waits for a rank that does not run the cell, a RankError says so, as for every
        other wait. Raises InputError if `on` names a rank that does not exist.
        """
        if missing := [rank for rank in on or () if rank not in range(self.n)]:
            raise InputError(f"There is no rank {missing[0]}: the ranks are 0 to {self.n - 1}.")
        remember_source(source, name)
        self._run((cells.run_cell, (source, name), {}), timeout, show=True, on=on)
        self._cells.pop(source, None)
        self._cells[source] = name

    def _run(self, call: tuple, timeout: float, show: bool | TextView, on: list[int] | None = None) -> list:
        if not self.healthy:
            self.wait_until_ended()
            raise RankError(f"These ranks cannot run anything: {self.trouble}. {self.remedy}")
        if not timeout > 0:
            raise InputError(f"timeout is {timeout!r}; it must be a number of seconds above 0.")
        try:
            payload = cloudpickle.dumps(call)
        except Exception as error:
            raise RankError(f"This cannot be sent to the ranks: {error}") from None
        view = show if isinstance(show, TextView) else None
        if show is True:
            view = (self.view or TextView)(self.n if on is None else len(on))
        self.busy = True
        try:
            return watch(self, payload, timeout, view, on)
        finally:
            self.busy = False

    def ask(self, function, *args, limit_s: float):
        """The result of `function(*args)` on rank 0.

        None if the function fails, or the ranks are busy, gone, or slower than `limit_s` seconds.
        """
        if self.busy or self.trouble is not None or not (self.asked is None or self.asked.ready()):
            return None
        self.asked = self.client[0].apply_async(function, *args)
        try:
            return self.asked.get(limit_s)
        except Exception:  # an error here must not disturb a user who is typing
            return None

    def train(self, options, timeout: float = 600.0, show: bool | TextView = True) -> dict:
        """Train on these ranks with these TrainOptions; returns the run record.

        show: whether to show the progress, or the view that shows it.
        """
        # Training isn't the ranks' business, so they import what does it only here, by its name.
        return importlib.import_module("workshop_lib.notebook.train_on").train_on(self, options, timeout, show)

    def pull(self, name: str) -> list:
        """The values of a variable on all ranks, in rank order."""
        return self.run(engine.pull, name, show=False)

    def push(self, **values) -> None:
        """Set variables on every rank."""
        self.run(engine.push, values, show=False)

    def about(self) -> list[dict]:
        """Host, process, threads, allowed cores and MPI library of every rank."""
        return self.run(engine.about, show=False, timeout=ABOUT_LIMIT_S)

    def processes_here(self, ranks: list[int]) -> dict[int, psutil.Process]:
        """The processes of these ranks by rank, without ranks on other hosts."""
        notes = folders.rank_notes(self.folder)
        mark = folders.mark(self.folder)
        pids = {rank: notes[rank]["pid"] for rank in ranks if rank in notes and is_here(notes[rank]["host"])}
        return {rank: process for rank, pid in pids.items() if (process := processes.with_mark(pid, mark))}

    def send_signal(self, ranks: list[int], number: int) -> None:
        """Send these ranks a signal; ranks on other hosts get it through the controller."""
        here = self.processes_here(ranks)
        for process in here.values():
            with contextlib.suppress(psutil.Error):  # the caller of the rank reports that it is gone
                process.send_signal(number)
        if elsewhere := [rank for rank in ranks if rank not in here]:
            with contextlib.suppress(Exception):
                self.client.send_signal(int(number), targets=elsewhere, block=False)

    def restart(self, n: int | None = None) -> "Ranks":
        """Replace these ranks by fresh ones (a different number of them if `n` is given), and return them.

        The fresh ranks become the notebook's current ranks. The variables of the old ranks are lost. Raises InputError
        for a bad `n`, and RankError if the fresh ranks do not come up.
        """
        if n is not None:
            check_number(n)
            crowding.check(n)
            if self.machine is None:
                crowding.note(n)
            self.shape = (n, *self.shape[1:])
        CURRENT.replace(self)  # stops any ranks started in place of these, because only one set may run
        self.wait_until_ended()
        end_old = threading.Thread(target=self._let_go())
        end_old.start()  # the old ranks are gone before the fresh ones have loaded Python
        try:
            self._start()
        finally:
            end_old.join()
        return self

    def stop(self) -> None:
        """End the ranks and everything started for them; do nothing if they are stopped already."""
        self._let_go()()
        self.wait_until_ended()

    def _let_go(self) -> Callable[[], None]:
        """Mark the ranks unusable; return a function that ends their processes."""
        self.trouble = "they were stopped"
        if self.client is not None:
            self.client.close(linger=0)
            self.client = None
        atexit.unregister(self.stop)  # so that nothing keeps ranks that were replaced
        end = self._end
        self._end = lambda: None
        self._made = []
        return end

    def _start(self) -> None:
        for tries_left in reversed(range(START_TRIES)):
            try:
                return self._start_once()
            except RankError as error:
                # Another program, such as another controller, has taken a port that this one had just found free.
                if PORT_TAKEN not in str(error) or not tries_left:
                    raise

    def _start_once(self) -> None:
        n, threads_per_rank, bind = self.shape
        job = allocation.find()
        emulated = emulation.settings(self.machine)
        own = (*launchers.ENGINE_VARIABLES, *emulated)
        plan = launchers.plan(n, threads_per_rank or 1, bind or "none", job, own)
        self._cells: dict[str, str] = {}  # the names of cells that ran on these ranks, by their source
        self._set_id = processes.new_set_id()
        limits.require(n, threads_per_rank or 1, all_here=plan.one_host)
        self.folder = folders.create(self._set_id, plan.elsewhere)
        # ipyparallel adds an engine's working folder to sys.path, so engines do not start in the learner's folder.
        # engine.prepare changes to the learner's folder later.
        places = [f"--profile-dir={self.folder}", f"--work-dir={self.folder}"]
        self._scratch = scratch.Scratch(self._set_id, one_host=plan.one_host)
        atexit.register(self.stop)
        self._end = unless_forked(_end, self._made, self._set_id, self.folder, self._scratch)
        settings = self._scratch.settings | {
            processes.VARIABLE: processes.mark(self._set_id),
            "WORKSHOP_LAUNCHER": "engines",
            "WORKSHOP_CWD": os.getcwd(),
            "PYTHONPATH": which_mpi.python_path(),
            "IPYTHONDIR": str(self.folder),
            **emulated,
        }
        environment = which_mpi.rank_environment(plan.settings | settings, plan.one_host)
        prepare = f"from workshop_lib.ranks.call import engine; engine.prepare({str(self.folder)!r})"
        connection = [f"--IPEngine.url_file={self.folder / folders.CONNECTION}", "--IPEngine.wait_for_url_file=180"]
        options = [*plan.engine_options, *([] if plan.elsewhere else WITHOUT_NANNY)]
        ranks = [*ENGINE, *places, *connection, *options, f"--IPEngine.startup_command={prepare}"]
        controller = [*CONTROLLER, *places, *_heartbeat(n), *NO_COPIES, *(REACHABLE if plan.elsewhere else [])]
        limit_s = (START_ELSEWHERE_LIMIT_S if plan.elsewhere else START_LIMIT_S) + START_LIMIT_PER_RANK_S * n
        try:
            agent = agents.ready(environment)
            deadline = time.monotonic() + limit_s
            stub = agents.stub_command(self.folder, agent if plan.one_host else None)
            for name, command in ((CONTROLLER_LOG, controller), (RANKS_LOG, [*plan.command, *stub, *ranks])):
                with open(self.folder / name, "wb") as output:
                    self._made.append(agent.make(command, environment, output))
            self.client = folders.connect(self.folder, limit_s, self._made)
            self._wait_for_engines(deadline, limit_s)
            self._user = os.getpid()
            self.trouble = None
            self._check_order()
        except BaseException as error:
            controller_failed = bool(self._made) and (self._made[0].poll() is not None or self._port_taken())
            if isinstance(error, RankError) and not controller_failed:
                for process in self._made[1:]:  # mpiexec, whose message is in the log only once it has ended
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(LAST_WORDS_LIMIT_S)
            log = self.folder / (CONTROLLER_LOG if controller_failed else RANKS_LOG)
            why = which_mpi.what_failed(log.read_text("utf8", "replace")) if log.exists() else ""
            self.stop()
            if isinstance(error, (RankError, OSError)):
                why = f"{why}\n{limits.behind(why)}".rstrip()
                if not controller_failed:
                    why = f"{why}\n{which_mpi.suspects()}"
                raise RankError(
                    f"The ranks did not start: {error}\n{why.strip()}".rstrip() + allocation.hint(job)
                ) from None
            raise

    def _wait_for_engines(self, deadline: float, limit_s: float) -> None:
        """Wait until every rank has registered and has run `engine.prepare`.

        Raises RankError at the deadline, after `limit_s` seconds, or if a rank, mpiexec or the controller ends.
        """
        noticed_by = time.monotonic() + NOTICE_LIMIT_S
        while True:
            prepared = len(list((self.folder / "rank").glob("*.json")))
            ready = min(prepared, len(self.client.ids))
            if ready >= self.n:
                return
            if records := folders.exit_records(self.folder):
                raise RankError(f"rank {records[0]['rank']} {how_it_ended(records[0])}.")
            for name, process in zip(("the controller", "mpiexec"), self._made, strict=True):
                if process.poll() is not None:
                    raise RankError(f"{name} {process.ending}.")
            self._require_ports()
            if time.monotonic() > deadline:
                raise RankError(f"{ready} of {self.n} came up in {limit_s:.0f} s.")
            if prepared < self.n:
                noticed_by = time.monotonic() + NOTICE_LIMIT_S
            elif time.monotonic() > noticed_by:
                # The client misses the notice of a rank that registers at the moment when the client connects.
                self.client.close(linger=0)
                self.client = folders.connect(self.folder, limit_s)
                noticed_by = time.monotonic() + NOTICE_LIMIT_S
            time.sleep(0.02)

    def _port_taken(self) -> bool:
        """Whether a part of the controller has ended for want of its port, while the controller itself goes on."""
        with contextlib.suppress(OSError):
            return PORT_TAKEN in (self.folder / CONTROLLER_LOG).read_text("utf8", "replace")
        return False

    def _require_ports(self) -> None:
        if self._port_taken():
            raise RankError("other programs took ports that the controller had found free. Start them again.")

    def _check_order(self) -> None:
        asked = self.client[:].apply_async(engine.about)
        began = time.monotonic()
        again_s = ASK_AGAIN_S
        while not asked.ready():
            elapsed_s = time.monotonic() - began
            if elapsed_s > again_s:
                asked = self.client[:].apply_async(engine.about)
                again_s *= 2
            # This doesn't use `run`, where an interrupt ends a call: here an interrupt has to end the start.
            self._require_ports()
            if self.is_lost() or elapsed_s > ABOUT_LIMIT_S:
                raise RankError("not every rank answers: one may have ended.")
            time.sleep(0.02)
        mpi_ranks = [about["rank"] for about in asked.get(0)]
        if mpi_ranks != list(range(self.n)):
            self.give_up("their MPI ranks do not follow their engine ids")
            raise RankError(
                f"The engines 0 to {self.n - 1} report the MPI ranks {mpi_ranks}. When every one says 0, "
                "mpiexec and mpi4py belong to different MPI libraries: run `workshop doctor`."
            )

    def is_lost(self) -> bool:
        """Whether a rank, mpiexec or the controller has ended, or the ranks' folder has gone with its holder."""
        if folders.exit_records(self.folder) or not (self.folder / "security").exists():
            return True
        return any(process.poll() is not None for process in self._made)

    def give_up(self, trouble: str) -> None:
        """Stop ranks that can no longer be used, because stuck ranks would keep cores busy until someone notices.

        They end in the background, because the learner's message need not wait for that.
        """
        self._ending = threading.Thread(target=self._let_go())
        self._ending.start()
        self.trouble = trouble

    def wait_until_ended(self) -> None:
        """Wait for ranks that were given up to end."""
        if self._ending is not None:
            self._ending.join()
