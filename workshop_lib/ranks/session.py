"""The notebook's ranks: start ranks, attach to ranks that another process holds, and stop ranks."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import EllipsisType

from workshop_lib.errors import InputError
from workshop_lib.machine import catalogue, environment
from workshop_lib.machine.load import Meter
from workshop_lib.machine.shadowing import shadows

from .faults.rank_errors import HOLD_AGAIN, RankError
from .launch import allocation, crowding, folders, processes, scratch
from .launch.cluster import CURRENT, START_ELSEWHERE_LIMIT_S, Ranks, check_number

ATTACH = "WORKSHOP_ATTACH"  # if set to anything but 0, `start` attaches to ranks that are held for this user
CONNECT_LIMIT_S = 10.0
GONE_AFTER_S = 15.0  # a holder that shows no ranks counts as gone; stopping old ranks takes it seconds
PROBE_EVERY_S = 0.5
PROBES_FAILED = 3


def start(
    n: int | EllipsisType = ..., *, threads_per_rank: int | None = None, bind: str = "none", machine: str | None = None
) -> Ranks:
    """Start MPI ranks and make them the notebook's current ones.

    n: number of ranks. By default, as many as fill the scheduler's allocation (WORKSHOP_RANKS_PER_NODE on each node;
    else one per GPU; else the job's tasks), or 2 without an allocation. threads_per_rank: OpenMP threads per rank. By
    default, as many as the cores that the job gives each task, or 1. bind: "none" or "core" (which_mpi.environment).

    machine: a machine that the ranks emulate, from the list that `workshop machines` prints. Each rank then has a clock
    of emulated time, which computing and messages move on as that machine would.

    Healthy ranks of the same shape are kept, so that a cell with `start` can be run again; other ranks are replaced.
    Processes that killed notebooks left behind on this machine are ended first. Prints a line, once, if other programs
    leave the ranks too few cores, and a line if many ranks share each core.
    With WORKSHOP_ATTACH=1, the ranks are those that `workshop engines start` holds, for instance in a job. They are
    restarted if their number is not `n`. In this way, a notebook runs unchanged on a login node. Their threads and
    binding stay as they are, and a sentence says so if the call asks for others.
    Raises InputError for a bad argument or far too many ranks for this machine, and RankError if the ranks do not come
    up in time: a minute (three if there are other nodes) and a second per rank.
    """
    if n is not ...:
        check_number(n)
    if os.environ.get(ATTACH, "0") != "0":
        if threads_per_rank is not None or bind != "none":
            print(f"{ATTACH} is set, so threads_per_rank and bind are those of the ranks' holder.", file=sys.stderr)
        if machine is not None:
            raise InputError(
                f"{ATTACH} is set, and ranks that are held emulate no machine: unset it, or leave machine out."
            )
        return _start_attached(None if n is ... else n)
    if machine is not None:
        catalogue.emulated_machine(machine)  # raises InputError for an unknown one
    environment.unpin()
    job = allocation.find()
    if n is ...:
        n = job.ranks() if job else 2
    crowding.check(n)
    if threads_per_rank is None:
        threads_per_rank = (job and job.cores_per_task) or 1
    shape = (n, threads_per_rank, bind)
    team = CURRENT.team
    if team is not None and (team.shape, team.machine) == (shape, machine) and team.healthy:
        return team
    CURRENT.replace(None)
    processes.reap()
    scratch.sweep()
    for shadow in shadows():
        print(f"{shadow}. Until then the workshop looks there last.", file=sys.stderr)
    others = Meter()
    CURRENT.replace(team := Ranks(n, threads_per_rank, bind, machine))
    if machine is not None:  # emulated time is the same whatever else runs
        return team
    crowding.note(n)
    warning = others.warning(n * threads_per_rank, "so don't trust times measured now")
    if warning and not CURRENT.busy_cores_noted:
        print(warning, file=crowding.notes_to())
        CURRENT.busy_cores_noted = True
    return team


def attach(folder: str | os.PathLike | None = None) -> Ranks:
    """Use ranks that another process holds (`workshop engines start`): those of `folder`, or the newest ones.

    That process may be on another host, such as a node of a job if this is a login node. The notebook's own ranks are
    stopped first. Raises RankError if no ranks answer.
    """
    path = folders.find(folder)
    CURRENT.replace(None)
    CURRENT.replace(team := AttachedRanks(path))
    return team


def _start_attached(n: int | None) -> Ranks:
    team = CURRENT.team
    if team is None or not team.attached_only:
        team = attach()
    return team if team.healthy and n in (None, team.n) else team.restart(n)


def current() -> Ranks:
    """The notebook's current ranks. Raises RankError when there are none."""
    if CURRENT.team is None:
        raise RankError("No ranks are running in this notebook. Start some with `ranks.start(2)`.")
    return CURRENT.team


def stop() -> None:
    """Stop the current ranks, if any."""
    CURRENT.replace(None)


class AttachedRanks(Ranks):
    """Ranks that another process holds, such as a job's. They are used like any ranks, but `stop` only disconnects."""

    attached_only = True

    def __init__(self, folder: Path):
        self._made = []
        self.client = None
        self._connect(folder)

    def _connect(self, folder: Path) -> None:
        self.folder = folder
        self._holder = folders.owner(folder)
        self.holder_host = folders.owner_host(folder)
        is_here = allocation.is_here(self.holder_host)
        if not is_here and not folders.answers(folder) and not folders.answers(folder):
            raise RankError(
                f"The ranks of {folder} are held on {self.holder_host} and do not answer: their job may have ended, or "
                f"{self.holder_host} cannot be reached from here. {HOLD_AGAIN}"
            )
        self._cells = {}
        self._probes_failed = 0
        self._next_probe = 0.0
        self.client = folders.connect(folder, CONNECT_LIMIT_S)
        self._user = os.getpid()
        self.trouble = None
        self.shape = (len(self.client.ids), None, None)
        self._check_order()

    def restart(self, n: int | None = None) -> Ranks:
        """Have the process that holds these ranks start fresh ones (`n`, if given), and connect to the fresh ones.

        Raises InputError for a bad `n`, and RankError if no fresh ranks come up.
        """
        if n is not None:
            check_number(n)
        CURRENT.replace(self)
        self.stop()
        folders.ask_for_restart(self.folder, n)
        self._connect(self._wait_for_fresh())
        if n not in (None, self.n):  # the holder was already replacing lost ranks when it was asked
            return self.restart(n)
        return self

    def _let_go(self) -> Callable[[], None]:
        """Disconnect from the ranks; their holder keeps them running."""
        if self.client is not None:
            self.trouble = "they were stopped"
            self.client.close(linger=0)
            self.client = None
        return lambda: None

    def _wait_for_fresh(self) -> Path:
        begun = seen = time.monotonic()
        while time.monotonic() - begun < START_ELSEWHERE_LIMIT_S:
            for folder in set(folders.of_holder(self._holder)) - {self.folder}:
                seen = time.monotonic()
                if (folder / folders.HELD).exists():
                    return folder
            if time.monotonic() - seen > GONE_AFTER_S:
                raise RankError(f"The process that held these ranks, or its job, has ended. {HOLD_AGAIN}")
            time.sleep(0.1)
        raise RankError(f"No fresh ranks came up within {START_ELSEWHERE_LIMIT_S:.0f} s where these were held.")

    def is_lost(self) -> bool:
        """Whether a rank or the ranks' holder has ended, or the controller has stopped answering."""
        if super().is_lost():
            return True
        if time.monotonic() > self._next_probe:  # a call may be under way, so the probe is short
            self._probes_failed = 0 if folders.answers(self.folder) else self._probes_failed + 1
            self._next_probe = time.monotonic() + PROBE_EVERY_S
        return self._probes_failed >= PROBES_FAILED
