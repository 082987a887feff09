"""Shares a learner's results with the room, once they ask for it: under a pseudonym, as a file in a shared folder.

`summary` makes that file from what learner.py keeps. It has no code, no answers and no paths. This module reads none of
the room's files; board.py does.
"""

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from workshop_lib import learner, paths
from workshop_lib.errors import InputError
from workshop_lib.exercises.exercises import by_notebook

OWN_FILE = "sharing.json"  # where a learner's choice is kept
MOST = 150  # entries per list (predictions, solved exercises) of one learner
NAME = re.compile(r"[a-z][a-z0-9-]{1,19}")
NAME_RULE = "2 to 20 small letters, digits and dashes, beginning with a letter"


def number(value: Any) -> float | None:
    """The value as a finite number; None if it is none, or is beyond 10^12."""
    try:
        converted = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return converted if abs(converted) <= 1e12 else None


def summary(events: Iterable[dict]) -> dict[str, list[dict]]:
    """What a learner shares of the events they kept: first guesses with what was measured, and solved exercises."""
    predictions: dict[tuple, dict] = {}
    solved: dict[tuple, dict] = {}
    for event in events:
        notebook = event["notebook"]
        if notebook not in by_notebook():  # a copy's name may say more than its owner wants to share
            continue
        if event["what"] == "prediction":
            question = event["question"]
            asked = {"notebook": notebook, "question": question, "unit": event["unit"], "guess": event["guess"]}
            first = predictions.setdefault((notebook, question), asked | {"measured": None})
            if first["measured"] is None:
                first["measured"] = number(event["measured"])
        elif event["what"] == "check" and event["passed"]:
            exercise = event["exercise"]
            solved[notebook, exercise] = {"notebook": notebook, "exercise": exercise}
    return {"predictions": list(predictions.values())[-MOST:], "solved": list(solved.values())[-MOST:]}


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
    if sharing != before and os.path.lexists(sharing.file):
        raise InputError(f"somebody is called {sharing.name} in {sharing.folder} already: choose another --name.")
    publish(sharing)
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


def publish(sharing: Sharing) -> None:
    """Write the learner's file into the folder, where readers get either the old file or the new one."""
    content = json.dumps(summary(learner.kept()))
    # "x" creates the temporary file and follows no link that somebody may have put in its place.
    with paths.replacing(sharing.file) as temporary, open(temporary, "x", encoding="utf8") as file:
        file.write(content)
        os.chmod(temporary, 0o644)  # the board may run under another account


class AfterCells:
    """Shares again after each cell that added to the learner's file, in a thread of its own, so no cell waits."""

    def __init__(self, shell: Any):
        self.size = -1
        self.thread = threading.Thread()
        shell.events.register("post_run_cell", self.look)

    def look(self, *_: Any) -> None:
        sharing = chosen()
        size = paths.LEARNER.stat().st_size if paths.LEARNER.is_file() else 0
        if sharing and size != self.size and not self.thread.is_alive():
            self.thread = threading.Thread(target=self._share, args=(sharing, size), daemon=True)
            self.thread.start()

    def _share(self, sharing: Sharing, size: int) -> None:
        with contextlib.suppress(Exception):  # a missing folder is no reason to disturb a cell
            if Path(sharing.folder).is_dir():
                publish(sharing)
                self.size = size
