"""The notebook's ranks: starting them, attaching to them, finding and stopping them."""

import os
import sys
from pathlib import Path

from workshop_lib.training.load import Meter

from . import allocation, folders, processes
from .attached import AttachedRanks
from .cluster import CURRENT, Ranks, check_number
from .errors import RankError

ATTACH = "WORKSHOP_ATTACH"  # set: `start` attaches to ranks that are held for this user


def start(n: int | None = None, *, threads_per_rank: int | None = None, bind: str = "none") -> Ranks:
    """Start MPI ranks and make them the notebook's current ones.

    Without `n` they are as many as fill the allocation of a scheduler (WORKSHOP_RANKS_PER_NODE on each
    node; else one a GPU; else the job's tasks), or 2 on a machine of one's own. Without `threads_per_rank`
    they have the cores that the job gives a task, or 1. Healthy ranks of the same shape are kept, so that
    a cell with `start` can be run again; others are replaced. What killed notebooks left behind on this
    machine is ended first. Says so when other programs leave the ranks too few cores.
    With WORKSHOP_ATTACH=1 they are those that `workshop engines start` holds, in a job for instance, brought
    to the number `n`: so a notebook runs as it is on a login node.
    Raises InputError for a bad argument, RankError when the ranks do not come up within a minute (three
    when there are other nodes).
    """
    if n is not None:
        check_number(n)
    if os.environ.get(ATTACH, "0") != "0":
        return _start_attached(n)
    job = allocation.find()
    if n is None:
        n = job.ranks() if job else 2
    if threads_per_rank is None:
        threads_per_rank = (job and job.cores_per_task) or 1
    shape = (n, threads_per_rank, bind)
    team = CURRENT.team
    if team is not None and team.healthy and team.shape == shape:
        return team
    CURRENT.replace(None)
    processes.reap()
    folders.remove_dead()
    others = Meter()
    CURRENT.replace(team := Ranks(n, threads_per_rank, bind))
    if warning := others.warning(n * threads_per_rank, "so don't trust times measured now"):
        print(warning, file=sys.stderr)
    return team


def attach(folder: str | os.PathLike | None = None) -> Ranks:
    """Use ranks that another process holds (`workshop engines start`), given their folder, or the newest.

    That process may be on another host, such as a node of a job when this is a login node. The notebook's
    own ranks are stopped first. Raises RankError when there are none that answer.
    """
    return _attach(folders.find(folder))


def _attach(folder: Path) -> Ranks:
    CURRENT.replace(None)
    CURRENT.replace(team := AttachedRanks(folder))
    return team


def _start_attached(n: int | None) -> Ranks:
    team = CURRENT.team
    if team is None or not team.attached_only:
        team = _attach(folders.find(held=True))  # not those of another notebook
    return team if team.healthy and n in (None, team.n) else team.restart(n)


def current() -> Ranks:
    """The notebook's current ranks. Raises RankError when there are none."""
    if CURRENT.team is None:
        raise RankError("No ranks are running in this notebook. Start some with `ranks.start(2)`.")
    return CURRENT.team


def stop() -> None:
    """Stop the current ranks, if any."""
    CURRENT.replace(None)
