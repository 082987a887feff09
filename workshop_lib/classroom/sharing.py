"""Shares a learner's results with the room, once they ask for it: under a pseudonym, as a file in a shared folder.

`summary` makes that file from what learner.py keeps. It has no code, no answers and no paths. This module reads none of
the room's files; board.py does.
"""

import contextlib
import json
import os
import re
import tempfile
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from workshop_lib import paths
from workshop_lib.course import learner
from workshop_lib.errors import InputError
from workshop_lib.machine.cores import usable_cores

SCHEMA = 1
OWN_FILE = "sharing.json"  # where a learner's choice is kept
MOST = 150  # entries per list (predictions, checks, …) of one learner
NAME = re.compile(r"[a-z][a-z0-9-]{1,19}")
NAME_RULE = "2 to 20 small letters, digits and dashes, beginning with a letter"
NOTEBOOK = re.compile(r"\d\d[a-z]?_[a-z0-9_]{1,40}")  # a copy's name may say more than its owner wants to share


def number(value: Any) -> float | None:
    """The value as a finite number; None if it is none, or is beyond 10^12."""
    try:
        converted = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return converted if abs(converted) <= 1e12 else None


def summary(name: str, events: Iterable) -> dict[str, Any]:
    """What a learner shares of the events they kept: first guesses, solved exercises and best speeds."""
    predictions: dict[tuple, dict] = {}
    solved: dict[tuple, dict] = {}
    speeds: dict[tuple, dict] = {}
    for event in events:
        if not isinstance(event, dict) or not NOTEBOOK.fullmatch(str(event.get("notebook"))):
            continue
        notebook = event["notebook"]
        match event:
            case {"what": "prediction", "question": str(question), "unit": str(unit)}:
                guess = number(event.get("guess"))
                if guess is None:
                    continue
                asked = {"notebook": notebook, "question": question, "unit": unit, "guess": guess, "measured": None}
                asked |= {end: number(event.get(end)) for end in ("low", "high")}
                first = predictions.setdefault((notebook, question), asked)
                if first["measured"] is None:
                    first["measured"] = number(event.get("measured"))
            case {"what": "training", "backend": str(backend), "world_size": int(ranks)}:
                speed = number(event.get("samples_per_s"))
                before = speeds.get((backend, ranks))
                if speed is not None and (before is None or before["samples_per_s"] < speed):
                    speeds[backend, ranks] = {"backend": backend, "world_size": ranks, "samples_per_s": speed}
            case {"what": "check", "exercise": str(exercise), "passed": True}:
                solved[notebook, exercise] = {"notebook": notebook, "exercise": exercise}
    return {
        "schema": SCHEMA,
        "name": name,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": usable_cores(),
        "predictions": list(predictions.values())[-MOST:],
        "solved": list(solved.values())[-MOST:],
        "speeds": list(speeds.values())[-MOST:],
    }


class Sharing(NamedTuple):
    """The folder in which a learner shares, and their name there. It is kept beside the learner's own file."""

    folder: str
    name: str

    @property
    def file(self) -> Path:
        return Path(self.folder, f"{self.name}.json")


def chosen() -> Sharing | None:
    """The folder and name that the learner chose; None for most learners, who share nothing."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        kept = json.loads(paths.LEARNER.with_name(OWN_FILE).read_text("utf8"))
        return Sharing(str(kept["folder"]), str(kept["name"]))
    return None


def start(sharing: Sharing) -> None:
    """Share from now on. Raises InputError if somebody else has this name in the folder, and OSError."""
    before = chosen()
    publish(sharing, is_new=sharing != before or not sharing.file.exists())
    with paths.replacing(paths.LEARNER.with_name(OWN_FILE)) as temporary:
        temporary.write_text(json.dumps(sharing._asdict()), "utf8")
    if before and before != sharing:
        before.file.unlink(missing_ok=True)


def stop() -> Sharing | None:
    """Stop sharing and remove the shared file; return what was shared until now, or None."""
    before = chosen()
    if before:
        before.file.unlink(missing_ok=True)
        paths.LEARNER.with_name(OWN_FILE).unlink(missing_ok=True)
    return before


def publish(sharing: Sharing, is_new: bool = False) -> None:
    """Write the learner's file into the folder atomically, so that readers get either the old file or the new one.

    The temporary file has a random name, and this process creates it, so nobody can put a link in its place.
    """
    text = json.dumps(summary(sharing.name, learner.kept()), allow_nan=False)
    number, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=sharing.folder)
    try:
        with os.fdopen(number, "w", encoding="utf8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # the board may run under another account
        if is_new:
            _claim(sharing)
        os.replace(temporary, sharing.file)
    except BaseException:
        os.unlink(temporary)
        raise


def _claim(sharing: Sharing) -> None:
    try:
        os.close(os.open(sharing.file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        raise InputError(
            f"somebody is called {sharing.name} in {sharing.folder} already: choose another --name."
        ) from None


class AfterCells:
    """Shares again after each cell that added to the learner's file, in a thread of its own, so no cell waits."""

    def __init__(self, shell: Any):
        self.size, self.thread = -1, threading.Thread()
        shell.events.register("post_run_cell", self.look)

    def look(self, *_: Any) -> None:
        sharing = chosen()
        if sharing and not self.thread.is_alive() and self._size() != self.size:
            self.thread = threading.Thread(target=self._share, args=(sharing,), daemon=True)
            self.thread.start()

    def _size(self) -> int:
        return paths.LEARNER.stat().st_size if paths.LEARNER.is_file() else 0

    def _share(self, sharing: Sharing) -> None:
        with contextlib.suppress(Exception):  # a missing folder is no reason to disturb a cell
            while (size := self._size()) != self.size:
                publish(sharing)
                self.size = size
