"""The folder of a set of ranks: connection files, logs, and what ranks write down about themselves."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import ipyparallel as ipp

from workshop_lib.paths import BUILD, replacing

from . import processes
from .allocation import is_here
from .errors import RankError
from .messages import ExitRecord, RankNote, StopNote
from .processes import is_dead

PROBE_LIMIT_S = 0.5
# Marks in a folder: held by `workshop engines start`, and what its holder is asked to do.
HELD, STOP, RESTART = "held", "stop", "restart"
CONNECTION = "connection.json"  # what engines connect with: a copy, there only when it is whole


def create(set_id: str, elsewhere: bool = False) -> Path:
    """A new folder, marked as this process's; in the checkout, which all nodes of a cluster see.

    Where the checkout cannot be written it is a temporary one, unless hosts elsewhere must see it.
    """
    parent = BUILD / "ranks"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = parent / set_id
        folder.mkdir(mode=0o700)
    except OSError as error:
        if elsewhere:
            raise RankError(
                f"{parent} cannot be written ({error.strerror}), and ranks on other nodes must see it: "
                "put the checkout where all nodes can write."
            ) from None
        folder = Path(tempfile.mkdtemp(prefix=f"workshop-{set_id}-"))
    (folder / "owner").write_text(processes.mark(set_id))
    return folder


def remove_dead() -> None:
    """Remove the folders that killed notebooks left."""
    for folder in (BUILD / "ranks").glob("*"):
        if is_dead(folder):
            shutil.rmtree(folder, ignore_errors=True)


def find(folder: str | os.PathLike | None = None, held: bool = False) -> Path:
    """The given folder, or that of the ranks started last, those that answer first.

    held: only of ranks that `workshop engines start` holds. Raises RankError when nobody holds ranks there.
    """
    parents = (BUILD / "ranks").glob("*") if folder is None else [Path(folder)]
    found = [path for path in parents if (path / "security").is_dir() and not is_dead(path)]
    if held:
        found = [path for path in found if (path / HELD).exists()]
    if not found:
        where = "" if folder is None else f" in {folder}"
        raise RankError(f"No running ranks were found{where}. Start some with `workshop engines start`.")
    found.sort(key=lambda path: (path / "security").stat().st_mtime, reverse=True)
    return found[0] if len(found) == 1 else next(filter(answers, found), found[0])


def mark(folder: Path) -> str:
    """The mark of all processes of these ranks; empty when the folder is gone."""
    with contextlib.suppress(OSError):
        return (folder / "owner").read_text()
    return ""


def owner(folder: Path) -> str:
    """The process that holds these ranks: its host, id and start."""
    return mark(folder).partition("@")[2]


def of_holder(holder: str) -> list[Path]:
    """The folders of ranks that this process holds, or is about to start."""
    return [folder for folder in (BUILD / "ranks").glob("*") if holder and owner(folder) == holder]


def ask_for_restart(folder: Path, n: int | None) -> None:
    """Leave word for the holder, unless it has already begun to replace these ranks."""
    with contextlib.suppress(OSError):
        (folder / RESTART).write_text(str(n or 0))


def restart_asked(folder: Path) -> int | None:
    """How many ranks somebody attached asked for, 0 for as many as there were; None if not asked."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / RESTART).read_text())
    return None


def owner_host(folder: Path) -> str:
    """The host whose process holds these ranks."""
    return owner(folder).partition("/")[0] or "an unknown host"


def answers(folder: Path) -> bool:
    """Whether the controller takes connections from here: it ends with the process that holds the ranks."""
    try:
        connection = json.loads((folder / "security" / "ipcontroller-client.json").read_text())
        host = connection["interface"].rpartition("/")[2]
        if host in ("*", "0.0.0.0"):
            host = "127.0.0.1" if is_here(connection["location"]) else connection["location"]
        elif host == "127.0.0.1" and not is_here(connection["location"]):
            return False
        socket.create_connection((host, connection["registration"]), timeout=PROBE_LIMIT_S).close()
    except (OSError, ValueError, KeyError):
        return False
    return True


def require_answer(folder: Path) -> None:
    """Raise RankError when ranks held on another host cannot be reached from here."""
    host = owner_host(folder)
    if not is_here(host) and not answers(folder) and not answers(folder):
        raise RankError(
            f"The ranks of {folder} are held on {host}, whose controller does not answer here: their job "
            f"may have ended, or {host} cannot be reached from this host. Attach from a node of the job, or "
            "start fresh ones there with `workshop engines start`."
        )


def exit_records(folder: Path) -> list[ExitRecord]:
    """How ranks ended, first the one that took the others along.

    That one nobody asked to end. A rank that was killed comes before one that only exited: MPI ends a rank
    whose connection to a lost one breaks, perhaps before the loss itself is written down.
    """
    records: list[ExitRecord] = _notes(folder, "exit")
    return sorted(records, key=lambda record: (record["asked"], record["returncode"] >= 0, record["time"]))


def stopped_ranks(folder: Path) -> dict[int, StopNote]:
    """The ranks that are stopped now, by a SIGSTOP or a debugger: nothing of them runs until they go on."""
    return {note["rank"]: note for note in _notes(folder, "stopped")}


def rank_notes(folder: Path) -> dict[int, RankNote]:
    """What the ranks that are ready wrote about themselves."""
    return {note["rank"]: note for note in _notes(folder, "rank")}


def _notes(folder: Path, kind: str) -> list:
    notes = []
    for path in folder.glob(f"{kind}.*.json"):
        with contextlib.suppress(OSError, ValueError):
            notes.append(json.loads(path.read_text()))
    return notes


def log_tail(folder: Path, lines: int = 12) -> str:
    """The last lines that the ranks and what started them printed."""
    with contextlib.suppress(OSError):
        return "\n".join((folder / "ranks.log").read_text("utf8", "replace").splitlines()[-lines:])
    return ""


def connect(folder: Path, deadline: float, supervised: Sequence[subprocess.Popen] = ()) -> ipp.Client:
    """Connect to the controller whose files are in `folder`, once it has written them.

    Raises RankError when the controller has ended or does not answer before the deadline.
    """
    files = [folder / "security" / f"ipcontroller-{side}.json" for side in ("engine", "client")]
    while not all(_is_json(file) for file in files):
        if supervised and supervised[0].poll() is not None:
            raise RankError(f"the controller ended with exit code {supervised[0].returncode}.")
        if time.monotonic() > deadline:
            raise RankError(f"no controller's connection file {files[1]} appeared.")
        time.sleep(0.01)
    if supervised:
        with replacing(folder / CONNECTION) as temporary:
            temporary.write_text(files[0].read_text())
    try:
        return ipp.Client(str(files[1]), timeout=max(1.0, deadline - time.monotonic()))
    except OSError as error:  # TimeoutError is one
        raise RankError(f"the controller of {files[1]} does not answer ({error}).") from None


def _is_json(file: Path) -> bool:
    """Whether the file is there and whole: the controller does not write it in one go."""
    try:
        return bool(json.loads(file.read_text()))
    except (OSError, ValueError):
        return False
