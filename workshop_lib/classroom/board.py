"""The board of a room: one HTML file about what learners share in a folder (sharing.py), rewritten every few seconds.

Anyone can write anything into that folder. So the board opens only plain files of moderate size, follows no links, and
runs nothing. It converts, clips and escapes what it takes from a file, and the page shows nothing else of it.
"""

import contextlib
import html
import json
import os
import stat
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workshop_lib import paths
from workshop_lib.classroom import board_page
from workshop_lib.classroom.board_page import Participant, Problem, Room
from workshop_lib.errors import cause
from workshop_lib.exercises.exercises import by_notebook
from workshop_lib.notebook.sharing import MOST, number

PAGE = paths.BUILD / "board.html"
REWRITE_S = 5
MOST_BYTES, MOST_CHARACTERS = 64_000, 300  # per file, and per text in it


class Unfit(ValueError):
    """Raised for a file that no learner shared. The message says why, without quoting the file."""


def text(value: Any) -> str:
    """A short line that is safe in a page: clipped, with "?" for control characters, and escaped."""
    line = value[:MOST_CHARACTERS] if isinstance(value, str) else "?"
    return html.escape("".join(each if each.isprintable() else "?" for each in line))


def write(folder: Path, page: Path, renew_s: int = 0) -> None:
    """Write the page about this folder, which reloads itself after `renew_s` seconds, or never if that is 0."""
    content = board_page.page(read(folder), renew_s)
    with paths.replacing(page) as temporary:
        temporary.write_text(content, "utf8")


def keep_writing(folder: Path, page: Path) -> None:
    """Rewrite the page until Ctrl-C. The last version does not reload itself in the browser."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(REWRITE_S)
            write(folder, page, REWRITE_S)
    write(folder, page)


def open_in_browser(page: Path) -> None:
    """Open the page, unless there is no screen: then Python would choose a browser that takes over the terminal."""
    if sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        # Some browsers keep the caller waiting until somebody closes them.
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()


def read(folder: Path) -> Room:
    """Everything in the folder: learners, and files that aren't theirs. Nothing in the folder makes this raise."""
    room = Room(text(str(folder.absolute())))
    try:
        # Hidden files are still being written.
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        names = []
        room.problems.append(Problem(room.folder, f"it can't be read: {cause(error)}"))
    for name in names:
        try:
            room.learners.append(_learner(name, _content(folder / name)))
        except FileNotFoundError:  # the file's learner has just stopped sharing
            pass
        except Unfit as error:
            room.problems.append(Problem(text(name), str(error)))
        except OSError as error:
            room.problems.append(Problem(text(name), f"it can't be read: {cause(error)}"))
    return room


def _content(path: Path) -> bytes:
    """The content of a plain file of moderate size. Raises Unfit for anything else, such as a pipe, without waiting."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise Unfit("only plain files are read")
    # By now, a link or a pipe may have taken the file's place. This neither follows the link nor waits for the pipe.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise Unfit(f"it is larger than {MOST_BYTES // 1000} kB")
    return content


def _learner(file: str, content: bytes) -> Participant:
    """Convert a file's content. The learner is called what the file is called, so nobody can speak for anybody else."""
    try:
        shared = json.loads(content)
    except (ValueError, RecursionError):
        raise Unfit("it isn't JSON") from None
    if not isinstance(shared, dict) or not file.endswith(".json"):
        raise Unfit("`workshop share` writes no such file")
    learner = Participant(text(file.removesuffix(".json")))
    for notebook, each in _entries(shared, "predictions"):
        guess, measured = number(each.get("guess")), number(each.get("measured"))
        if guess is not None:
            learner.guesses[notebook, text(each.get("question")), text(each.get("unit"))] = guess, measured
    for notebook, each in _entries(shared, "solved"):
        exercise = each.get("exercise")
        if isinstance(exercise, str) and exercise in by_notebook()[notebook]:
            learner.solved.add((notebook, exercise))
    return learner


def _entries(shared: dict, name: str) -> Iterator[tuple[str, dict]]:
    """The entries of one of the file's lists, each with its notebook, as far as there is such a list and notebook."""
    listed = shared.get(name)
    for each in listed[:MOST] if isinstance(listed, list) else []:
        notebook = each.get("notebook") if isinstance(each, dict) else None
        if isinstance(notebook, str) and notebook in by_notebook():
            yield notebook, each
