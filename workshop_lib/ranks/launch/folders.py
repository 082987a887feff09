"""The folder of a set of ranks: connection files, logs, and what ranks write down about themselves."""

import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ipyparallel as ipp

from workshop_lib.errors import cause
from workshop_lib.paths import BUILD, keeps_secrets, replacing
from workshop_lib.ranks import owned
from workshop_lib.ranks.call.messages import ExitRecord, RankNote, StopNote, Whereabouts
from workshop_lib.ranks.faults.rank_errors import RankError
from workshop_lib.ranks.faults.whereabouts import AT
from workshop_lib.ranks.owned import is_dead

from .allocation import is_here

PROBE_LIMIT_S = 0.5
# Marker files in a ranks' folder. HELD: `workshop engines start` holds the ranks. STOP and RESTART are requests to it.
HELD = "held"
STOP = "stop"
RESTART = "restart"
NOTES = ("rank", "stopped", "exit")  # the kinds of notes about ranks: messages.RankNote, StopNote, ExitRecord
NEEDED_BYTES = 2**16  # a set of ranks writes a few kilobytes, or more if its errors are long
CONNECTION = "connection.json"  # the engines' copy of the connection file, which appears only when it is complete


def create(set_id: str, elsewhere: bool = False) -> Path:
    """Create a folder with this process's mark, in the checkout, because all nodes of a cluster see the checkout.

    If the checkout cannot be written or cannot keep a secret, the folder is a temporary one, unless other hosts must
    see it (elsewhere). Raises RankError if no folder can be used.
    """
    parent = BUILD / "ranks"
    try:
        return _make(parent / set_id, set_id)
    except OSError as error:
        why = f"{parent} cannot be used, because {cause(error)}"
    if elsewhere:
        raise RankError(f"{why}, and ranks on other nodes must see it: put the checkout where all nodes can write.")
    try:
        return _make(Path(tempfile.gettempdir(), f"workshop-{set_id}"), set_id)
    except OSError as error:
        raise RankError(
            f"The ranks need a folder for their files. {why}; and no temporary folder can, because {cause(error)}. "
            "Make room in one of them, or set TMPDIR to a folder of yours."
        ) from None


def _make(folder: Path, set_id: str) -> Path:
    """Create the folder with its owner's mark. Raises OSError if ranks could not keep their files and key there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(NEEDED_BYTES))
        if not keeps_secrets(folder):
            raise OSError("its file system keeps no permissions, so others could read the ranks' key")
        # A call looks for notes every few milliseconds, so each kind has a folder of its own, which is mostly empty.
        for kind in (*NOTES, AT):
            (folder / kind).mkdir()
        owned.claim(folder, set_id)
    except OSError:
        owned.remove(folder)
        raise
    return folder


def find(folder: str | os.PathLike | None = None) -> Path:
    """The folder of ranks that `workshop engines start` holds: the given one, or the newest.

    Ranks that answer are preferred. Raises RankError if there are none.
    """
    parents = (BUILD / "ranks").glob("*") if folder is None else [Path(folder)]
    found = [path for path in parents if (path / HELD).exists() and not is_dead(path)]
    if not found:
        where = "" if folder is None else f" in {folder}"
        raise RankError(f"No running ranks were found{where}. Start some with `workshop engines start`.")
    found.sort(key=lambda path: (path / HELD).stat().st_mtime, reverse=True)
    return found[0] if len(found) == 1 else next(filter(answers, found), found[0])


def mark(folder: Path) -> str:
    """The mark that all processes of these ranks carry; empty if the folder is gone."""
    with contextlib.suppress(OSError):
        return (folder / owned.OWNER).read_text()
    return ""


def owner(folder: Path) -> str:
    """The process that holds these ranks, as its mark names it; empty if the folder is gone."""
    return mark(folder).partition("@")[2]


def of_holder(holder: str) -> list[Path]:
    """The folders of ranks that this holder has, or is about to start."""
    return [folder for folder in (BUILD / "ranks").glob("*") if holder and owner(folder) == holder]


def ask_for_restart(folder: Path, n: int | None) -> None:
    """Ask the holder for `n` fresh ranks (None: as many as now), unless it has already begun to replace these."""
    with contextlib.suppress(OSError):
        (folder / RESTART).write_text(str(n or 0))


def restart_asked(folder: Path) -> int | None:
    """How many fresh ranks an attached process has asked for, 0 for as many as now; None if it has not asked."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / RESTART).read_text())
    return None


def owner_host(folder: Path) -> str:
    """The host of the process that holds these ranks."""
    return owner(folder).partition("/")[0] or "an unknown host"


def answers(folder: Path) -> bool:
    """Whether the controller accepts connections from here. If not, the process that holds the ranks may have ended."""
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


def exit_records(folder: Path) -> list[ExitRecord]:
    """The records of how ranks ended. The first record is of the rank that was lost first and so ended the others.

    Nobody asked the lost rank to end. A killed rank comes before a rank that exited: when the connection to a lost rank
    breaks, MPI ends the rank at the other end, perhaps before the loss itself is written down.
    """
    records: list[ExitRecord] = list(_notes(folder, "exit").values())
    return sorted(records, key=lambda record: (record["asked"], record["returncode"] >= 0, record["time"]))


def stopped_ranks(folder: Path) -> dict[int, StopNote]:
    """The notes of ranks that a SIGSTOP or a debugger has stopped, by rank. Such ranks run nothing until continued."""
    return _notes(folder, "stopped")


def rank_notes(folder: Path) -> dict[int, RankNote]:
    """The notes that ranks wrote about themselves when they were ready, by rank."""
    return _notes(folder, "rank")


def answers_of(folder: Path) -> dict[int, Whereabouts]:
    """What ranks have answered since their last answers were forgotten, by rank."""
    return _notes(folder, AT)


def forget_answers(folder: Path) -> None:
    for path in (folder / AT).glob("*.json"):
        path.unlink(missing_ok=True)


def _notes(folder: Path, kind: str) -> dict[int, Any]:
    """The notes of this kind by rank, which their files are named after."""
    notes = {}
    place = os.path.join(folder, kind)
    with contextlib.suppress(OSError):  # the folder disappears with the ranks' holder
        for name in os.listdir(place):  # faster than a glob, because a call asks again and again
            rank, ending = os.path.splitext(name)
            if ending == ".json":
                with contextlib.suppress(OSError, ValueError), open(os.path.join(place, name)) as file:
                    notes[int(rank)] = json.load(file)
    return notes


def connect(folder: Path, limit_s: float, made: Sequence = ()) -> ipp.Client:
    """Connect to the controller whose connection files are in `folder`, as soon as they are complete.

    Raises RankError if the controller has ended or does not answer within `limit_s` seconds.
    """
    deadline = time.monotonic() + limit_s
    files = [folder / "security" / f"ipcontroller-{side}.json" for side in ("engine", "client")]
    while not all(_is_json(file) for file in files):
        if made and made[0].poll() is not None:
            raise RankError(f"the controller {made[0].ending}.")
        if time.monotonic() > deadline:
            raise RankError(f"no controller's connection file {files[1]} appeared.")
        time.sleep(0.01)
    if made:
        with replacing(folder / CONNECTION) as temporary:
            temporary.write_text(files[0].read_text())
    try:
        return ipp.Client(str(files[1]), timeout=max(1.0, deadline - time.monotonic()))
    except OSError as error:  # such as TimeoutError
        raise RankError(f"the controller of {files[1]} does not answer ({error}).") from None


def _is_json(file: Path) -> bool:
    """Whether the file exists and is complete; the controller does not write it in one go."""
    try:
        return bool(json.loads(file.read_text()))
    except (OSError, ValueError):
        return False
