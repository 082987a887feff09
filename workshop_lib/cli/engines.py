"""`workshop engines`: ranks that a job holds for notebooks to attach to.

The functions that use `ranks.folders` import it themselves, because it imports ipyparallel: other commands, which may
run as ranks, do without.
"""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from workshop_lib import ranks as teams
from workshop_lib.arguments import BIND, Parser, first_paragraph
from workshop_lib.errors import InputError
from workshop_lib.ranks import RankError
from workshop_lib.ranks.launch import allocation

LOOK_EVERY_S = 0.5
STOP_LIMIT_S = 30.0
REPLACED_WITHIN_S = 0.5


def engines_arguments(parser: Parser) -> None:
    parser.description = "Ranks that a job holds for notebooks to attach to."
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    start_arguments(commands.add_parser("start", help=first_paragraph(start.__doc__)))
    stop_arguments(commands.add_parser("stop", help=first_paragraph(stop.__doc__)))


def start_arguments(parser: Parser) -> None:
    parser.runs(start)
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="How many ranks; by default, as many as fill the allocation."
    )
    parser.add_argument(
        "--ranks-per-node", type=int, metavar="N", help="Ranks on each node; by default, one per GPU or task."
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="Threads per rank; by default, as many as the job's tasks have, or 1."
    )
    parser.add_argument("--bind", default=BIND, metavar="NAME", help="Bind ranks to cores: none or core.")


def start(ranks: int | None, ranks_per_node: int | None, threads: int | None, bind: str) -> None:
    """Hold ranks until stopped: by `workshop engines stop`, Ctrl-C, or the end of the job.

    Lost ranks are replaced, since another job would have to wait in the queue.
    """
    from workshop_lib.ranks.launch import folders

    if ranks_per_node is not None:
        if ranks_per_node < 1:
            raise InputError(f"--ranks-per-node is {ranks_per_node}; it must be at least 1.")
        os.environ[allocation.RANKS_PER_NODE] = str(ranks_per_node)
        if allocation.find() is None:
            ranks = ranks or ranks_per_node
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # these signals act like Ctrl-C
    try:
        team = teams.start(... if ranks is None else ranks, threads_per_rank=threads, bind=bind)
        _show(team)
        while not (team.folder / folders.STOP).exists():
            time.sleep(LOOK_EVERY_S)
            asked = folders.restart_asked(team.folder)
            if (asked is None and team.healthy) or (team.folder / folders.STOP).exists():
                continue
            why = "they were asked for" if asked is not None else team.trouble
            print(f"Fresh ranks: {why}.", flush=True)
            team.restart(asked or None)
            _show(team)
    except KeyboardInterrupt:
        pass
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # stopping takes a bounded time, and no signal may cut it short
        teams.stop()
    print("The ranks were stopped.")


def _show(team) -> None:
    """Announce these ranks: to programs with a file, to people with a few lines."""
    from workshop_lib.ranks.launch import folders

    (team.folder / folders.HELD).touch()
    for about in team.about():
        print("rank {rank}: {host}, process {pid}, cores {cores}, {mpi}".format(**about))
    how = f"ranks.attach({str(team.folder)!r}), or WORKSHOP_ATTACH=1"
    print(f"In a notebook: {how}. Stop with Ctrl-C or workshop engines stop.", flush=True)


def stop_arguments(parser: Parser) -> None:
    parser.runs(stop)
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="FOLDER",
        help="The folder of the ranks; by default, that of the ranks started last.",
    )


def stop(folder: Path | None) -> None:
    """Stop ranks that `workshop engines start` holds, on any host that shares this checkout."""
    from workshop_lib.ranks.launch import folders

    team_folder = folders.find(folder)
    host = folders.owner_host(team_folder)
    holder = folders.owner(team_folder)
    asked: set[Path] = set()  # each is asked once: a second file would get in the way of removing the folder
    deadline = time.monotonic() + STOP_LIMIT_S
    while (left := _left(team_folder, holder)) and time.monotonic() < deadline and not folders.is_dead(team_folder):
        for path in set(left) - asked:
            with contextlib.suppress(OSError):
                (path / folders.STOP).touch()
        asked |= set(left)
        time.sleep(0.1)
    for path in left:
        if folders.answers(path) and not folders.is_dead(path):
            raise RankError(
                f"The ranks of {path} on {host} still run {STOP_LIMIT_S:.0f} s after being asked to stop: "
                "end their job, or the process that holds them there."
            )
        # Nobody holds this folder any more. Ranks that still run somewhere end when they find it gone.
        shutil.rmtree(path, ignore_errors=True)
    print(f"The ranks on {host} were stopped: {team_folder}")


def _left(team_folder: Path, holder: str) -> list[Path]:
    """The folders that the holder still has, including those of fresh ranks that replace lost ones a moment later."""
    from workshop_lib.ranks.launch import folders

    for wait_s in (0.0, REPLACED_WITHIN_S):
        time.sleep(wait_s)
        if left := [path for path in {team_folder, *folders.of_holder(holder)} if path.exists()]:
            return left
    return []
