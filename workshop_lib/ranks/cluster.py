"""A set of MPI ranks that a notebook starts, uses, restarts and stops."""

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from workshop_lib import learner
from workshop_lib.errors import InputError

from . import allocation, cells, engine, folders, launchers, mpi, processes
from .allocation import is_here
from .errors import RankError, how_it_ended, remember_source
from .progress import TextView
from .scratch import Scratch
from .watch import watch

UNNAMED = "cell"
ABOUT_LIMIT_S = 30.0
START_LIMIT_S, START_ELSEWHERE_LIMIT_S = 60.0, 180.0  # many nodes read Python from one shared disk
# Both leave the current folder out while they load (-P), and import workshop_lib first: see shadowing.py.
CONTROLLER_MAIN = "import workshop_lib; from ipyparallel.controller.app import main; main()"
CONTROLLER = [sys.executable, "-P", "-c", CONTROLLER_MAIN]
# A fifth of an engine's start would be the import of a debugger; engine.prepare makes it available again.
# Before anything else, a rank gets rid of variables that harm it, which its host's own profile may have set.
ENGINE_MAIN = (
    "import sys; from workshop_lib import environment; environment.clean(); "
    "sys.modules['debugpy'] = None; from ipyparallel.engine.app import main; main()"
)
ENGINE = [sys.executable, "-P", "-c", ENGINE_MAIN, "--mpi"]
# A process beside each rank, which passes on signals from other hosts. Here they are sent directly.
WITHOUT_NANNY = ["--IPEngine.enable_nanny=False"]
# A tenth of a second a heartbeat instead of three: ranks register sooner. A rank counts as lost after 30 s
# without one, far longer than any computation keeps the beat waiting.
HEARTBEAT = ["--HeartMonitor.period=100", "--HeartMonitor.max_heartmonitor_misses=300"]
CONTROLLER_LOG, RANKS_LOG = "controller.log", "ranks.log"  # in the ranks' folder
# The controller had 61 files open for 2 ranks and 74 for 8; each rank 64, and more in a training.
OPEN_FILES, OPEN_FILES_PER_RANK = 128, 4
REACHABLE = ["--ip=*"]  # other hosts can connect, with the key in the ranks' folder, which only its owner can read


class Current:
    """The notebook's current ranks, of which there is one set at most."""

    def __init__(self):
        self.team: Ranks | None = None

    def replace(self, team: "Ranks | None") -> None:
        """From now on these are the notebook's ranks; different ones before are stopped."""
        if self.team is not None and self.team is not team:
            self.team.stop()
        self.team = team


CURRENT = Current()


def check_number(n) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(f"The number of ranks is {n!r}; it must be a whole number, at least 1.")


def _end(supervised: list[subprocess.Popen], set_id: str, folder: Path, scratch: Scratch) -> None:
    # mpiexec first and politely, so that it ends ranks on other nodes; then all that is left here.
    for process in supervised[1:]:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(4)
    processes.end(set_id)
    for process in supervised:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(4)
    shutil.rmtree(folder, ignore_errors=True)
    scratch.remove()


class Ranks:
    """MPI ranks in ipyparallel engines; engine id = MPI rank = position in every list of results.

    The controller and `mpiexec` are started directly, not through `ipyparallel.Cluster`, so that each
    has a supervisor: they end when this process ends, however it ends.
    """

    view = TextView  # how a run shows its progress; the notebook package sets its own
    attached_only = False  # whether another process holds them
    busy = False  # whether a call is under way
    asked: Any = None  # the answer to come of the last question to rank 0

    def __init__(self, n: int, threads_per_rank: int = 1, bind: str = "none"):
        self.shape: tuple[int, int | None, str | None] = (n, threads_per_rank, bind)
        self.trouble: str | None = "they were never started"  # None: the ranks can take a call
        self.client: Any = None  # an ipyparallel.Client
        self._supervised: list[subprocess.Popen] = []
        atexit.register(self.stop)
        self._start()

    @property
    def remedy(self) -> str:
        """How to get ranks in place of these, as the end of a message."""
        return f"`team.restart()` brings fresh ones. {self.empty_memory}"

    @property
    def empty_memory(self) -> str:
        """What is gone with these ranks, as a sentence about those that take their place."""
        cells = [name for name in dict.fromkeys(self._cells.values()) if name != UNNAMED]
        return f"Their memory is empty: run {', '.join(cells)} again." if cells else "Their memory is empty."

    @property
    def n(self) -> int:
        return self.shape[0]

    @property
    def healthy(self) -> bool:
        """Whether the ranks can take the next call."""
        if self.trouble is None and self._lost():
            records = folders.exit_records(self.folder)
            how = "rank {rank} on {host} ".format(**records[0]) + how_it_ended(records[0]) if records else ""
            self._give_up(how or "a rank or its launcher ended while nothing was running")
        return self.trouble is None

    def __repr__(self):
        state = "ready" if self.healthy else f"stopped: {self.trouble}"
        return f"<{self.n} MPI rank{'s' * (self.n > 1)}, {state}>"

    def run(self, function, /, *args, timeout: float = 120.0, show: bool = True, **kwargs) -> list:
        """Call `function(*args, **kwargs)` on every rank; returns the results in rank order.

        Whatever a rank prints appears with its rank in front. Ends within `timeout` seconds with a RankError
        that says which rank failed and on which line every other rank was: at once when a rank has ended,
        within 3 s of a rank failing while the others wait for it in a collective, and within 15 s while they
        do something else. Afterwards the ranks may need `restart()`; the error says so.
        """
        return self._run((function, args, kwargs), timeout, show)

    def run_cell(self, source: str, name: str = UNNAMED, timeout: float = 120.0, on: list[int] | None = None) -> None:
        """Run a cell's source on every rank, or on those of `on`, in the ranks' own namespace.

        A collective or a message that waits for a rank without the cell is reported, as every wait is.
        """
        if missing := [rank for rank in on or () if rank not in range(self.n)]:
            raise InputError(f"There is no rank {missing[0]}: the ranks are 0 to {self.n - 1}.")
        remember_source(source, name)
        self._run((cells.run_cell, (source, name), {}), timeout, show=True, on=on)
        self._cells.pop(source, None)
        self._cells[source] = name

    def _run(self, call: tuple, timeout: float, show: bool, on: list[int] | None = None) -> list:
        if not self.healthy:
            raise RankError(f"These ranks cannot run anything: {self.trouble}. {self.remedy}")
        if not timeout > 0:
            raise InputError(f"timeout is {timeout!r}; it must be a number of seconds above 0.")
        try:
            payload = cloudpickle.dumps(call)
        except Exception as error:
            raise RankError(f"This cannot be sent to the ranks: {error}") from None
        view = self.view(self.n if on is None else len(on), trains=call[0] is engine.train_here) if show else None
        self.busy = True
        try:
            return watch(self, payload, timeout, view, on)
        finally:
            self.busy = False

    def ask(self, function, *args, limit_s: float):
        """What `function(*args)` gives on rank 0; None when the ranks are busy, gone, or slower than the limit."""
        if self.busy or self.trouble is not None or not (self.asked is None or self.asked.ready()):
            return None
        self.asked = self.client[0].apply_async(function, *args)
        try:
            return self.asked.get(limit_s)
        except Exception:  # what a question brings to light is no reason to disturb whoever types
            return None

    def train(self, options, timeout: float = 600.0, show: bool = True) -> dict:
        """Train on these ranks with these TrainOptions; returns the run record."""
        record = self.run(engine.train_here, options, timeout=timeout, show=show)[0]
        learner.keep(learner.Training.of(record))
        return record

    def pull(self, name: str) -> list:
        """One variable of every rank, in rank order."""
        return self.run(engine.pull, name, show=False, timeout=30)

    def push(self, **values) -> None:
        """Set variables on every rank."""
        self.run(engine.push, values, show=False, timeout=30)

    def about(self) -> list[dict]:
        """Host, process, threads, allowed cores and MPI library of every rank."""
        return self.run(engine.about, show=False, timeout=ABOUT_LIMIT_S)

    def processes_here(self, ranks: list[int]) -> dict[int, psutil.Process]:
        """The processes of those of these ranks that are on this host."""
        notes, mark = folders.rank_notes(self.folder), folders.mark(self.folder)
        pids = {rank: notes[rank]["pid"] for rank in ranks if rank in notes and is_here(notes[rank]["host"])}
        return {rank: process for rank, pid in pids.items() if (process := processes.with_mark(pid, mark))}

    def send_signal(self, ranks: list[int], number: int) -> None:
        """Send these ranks a signal: to those elsewhere through the controller."""
        here = self.processes_here(ranks)
        for process in here.values():
            with contextlib.suppress(psutil.Error):  # a rank that is gone is reported by whoever called it
                process.send_signal(number)
        if elsewhere := [rank for rank in ranks if rank not in here]:
            with contextlib.suppress(Exception):
                self.client.send_signal(int(number), targets=elsewhere, block=False)

    def restart(self, n: int | None = None) -> "Ranks":
        """Fresh ranks (of another number, if `n` is given), the notebook's current ones from now on.

        Their variables are gone.
        """
        if n is not None:
            check_number(n)
            self.shape = (n, *self.shape[1:])
        CURRENT.replace(self)  # those that were started in their place are stopped: only the current ones ever run
        end_old = threading.Thread(target=self._let_go())
        end_old.start()  # they are gone before the fresh ones have loaded Python
        try:
            self._start()
        finally:
            end_old.join()
        return self

    def stop(self) -> None:
        """End the ranks and everything started for them; does nothing when they are stopped already."""
        self._let_go()()

    def _let_go(self) -> Callable[[], None]:
        """From now on these cannot be used; returns what ends them."""
        if self.client is None and not self._supervised:
            return lambda: None
        self.trouble = "they were stopped"
        if self.client is not None:
            self.client.close(linger=0)
            self.client = None
        supervised, self._supervised = self._supervised, []
        return functools.partial(_end, supervised, self._set_id, self.folder, self._scratch)

    def _start(self) -> None:
        n, threads_per_rank, bind = self.shape
        job = allocation.find_living()
        plan = launchers.plan(n, threads_per_rank or 1, bind or "none", job)
        self._cells: dict[str, str] = {}  # the names of cells that ran on these ranks, by their source
        self._set_id = uuid.uuid4().hex[:12]
        processes.allow_open_files(OPEN_FILES + OPEN_FILES_PER_RANK * n)
        self.folder = folders.create(self._set_id, plan.elsewhere)
        # ipyparallel adds the working folder to sys.path, so it isn't the learner's. engine.prepare goes back there.
        places = [f"--profile-dir={self.folder}", f"--work-dir={self.folder}"]
        self._scratch = Scratch(self._set_id, one_host=not plan.elsewhere)
        settings = self._scratch.settings | {
            processes.VARIABLE: processes.mark(self._set_id),
            "WORKSHOP_LAUNCHER": "engines",
            "WORKSHOP_CWD": os.getcwd(),
            "PYTHONPATH": mpi.python_path(),
            "IPYTHONDIR": str(self.folder),
        }
        environment = mpi.rank_environment(plan.settings | settings, not plan.elsewhere)
        prepare = f"from workshop_lib.ranks import engine; engine.prepare({str(self.folder)!r})"
        record = [*processes.SUPERVISOR, "--record", str(self.folder), "--"]
        connection = [f"--IPEngine.url_file={self.folder / folders.CONNECTION}", "--IPEngine.wait_for_url_file=180"]
        options = [*plan.engine_options, *([] if plan.elsewhere else WITHOUT_NANNY)]
        ranks = [*record, *ENGINE, *places, *connection, *options, f"--IPEngine.startup_command={prepare}"]
        controller = [*CONTROLLER, *places, *HEARTBEAT, *(REACHABLE if plan.elsewhere else [])]
        limit_s = START_ELSEWHERE_LIMIT_S if plan.elsewhere else START_LIMIT_S
        deadline = time.monotonic() + limit_s
        try:
            self._spawn(controller, CONTROLLER_LOG, environment)
            self._spawn([*plan.command, *ranks], RANKS_LOG, environment)  # both import for a second, side by side
            self.client = folders.connect(self.folder, deadline, self._supervised)
            self._wait_for_engines(deadline, limit_s)
            self.trouble = None
            self._check_order()
        except BaseException as error:
            controller_ended = bool(self._supervised) and self._supervised[0].poll() is not None
            why = folders.why_ended(self.folder, CONTROLLER_LOG if controller_ended else RANKS_LOG)
            self.stop()
            if isinstance(error, (RankError, OSError, TimeoutError)):
                if not controller_ended:
                    # Open MPI's own words about such a variable don't name it.
                    why = mpi.suspects() or why
                raise RankError(f"The ranks did not start: {error}\n{why}".rstrip() + allocation.hint(job)) from None
            raise

    def _spawn(self, command: list[str], log: str, environment: dict[str, str]) -> None:
        with open(self.folder / log, "wb") as output:
            process = subprocess.Popen(
                [*processes.SUPERVISOR, "--", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._supervised.append(process)

    def _wait_for_engines(self, deadline: float, limit_s: float) -> None:
        """Until every rank has registered and has run `engine.prepare`."""
        while not all((self.folder / f"rank.{rank}.json").exists() for rank in range(self.n)) or (
            len(self.client.ids) < self.n
        ):
            if records := folders.exit_records(self.folder):
                raise RankError(f"rank {records[0]['rank']} {how_it_ended(records[0])}.")
            for name, process in zip(("the controller", "mpiexec"), self._supervised, strict=True):
                if process.poll() is not None:
                    raise RankError(f"{name} ended with exit code {process.returncode}.")
            if time.monotonic() > deadline:
                raise RankError(f"{len(self.client.ids)} of {self.n} came up in {limit_s:.0f} s.")
            time.sleep(0.02)

    def _check_order(self) -> None:
        asked = self.client[:].apply_async(engine.about)
        deadline = time.monotonic() + ABOUT_LIMIT_S
        while not asked.ready():
            # Not by `run`, to which an interrupt is the end of a call: here it's the end of the start.
            if self._lost() or time.monotonic() > deadline:
                raise RankError("not every rank answers: one may have ended.")
            time.sleep(0.02)
        mpi_ranks = [about["rank"] for about in asked.get(0)]
        if mpi_ranks != list(range(self.n)):
            self._give_up("their MPI ranks do not follow their engine ids")
            raise RankError(
                f"The engines 0 to {self.n - 1} report the MPI ranks {mpi_ranks}. When every one says 0, "
                "mpiexec and mpi4py belong to different MPI libraries: run `workshop doctor`."
            )

    def _lost(self) -> bool:
        """Whether a rank, mpiexec or the controller has ended; or whoever held them, with their folder."""
        if folders.exit_records(self.folder) or not (self.folder / "security").exists():
            return True
        return any(process.poll() is not None for process in self._supervised)

    def _give_up(self, trouble: str) -> None:
        """Stop ranks that can no longer be used: stuck ones would burn cores until someone looks."""
        self.stop()
        self.trouble = trouble
