"""The board of a room: a web server that shows what learners share in a folder (sharing.py), and trusts none of it.

A file that is not a `Result` is listed with a reason, and none of its content is shown. The board only reads files,
follows no links, and no pipe or huge file can hold it up. It answers requests from this machine alone.
"""

import contextlib
import itertools
import json
import os
import stat
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn
from urllib.parse import parse_qs, urlsplit

from workshop_lib.classroom import board_page, sharing
from workshop_lib.classroom.board_page import Problem, Room
from workshop_lib.classroom.sharing import Result, Unfit
from workshop_lib.errors import InputError, cause

HOST = "127.0.0.1"
# Largest number of files that are read, and of names that are looked at.
MOST_FILES = 200
MOST_NAMES = 5000
# Bytes and opening brackets per file; brackets limit nesting.
MOST_BYTES = 64_000
MOST_PARTS = 800
ACTIVE_S = 600
NEW_S = 60
READ_EVERY_S = 2.0
PATIENCE_S = 3.0  # the longest wait for a folder that doesn't answer
KINDS = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
BOUNDS = f"larger than {MOST_BYTES // 1000} kB, and no result is"


def read(folder: Path) -> Room:
    """Everything in the folder: results, and files that are not results. Nothing in the folder makes this raise."""
    room = Room(str(folder.absolute()), time.strftime("%H:%M:%S"))
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, MOST_NAMES)]
    except OSError as error:
        room.note = f"This folder can't be read: {cause(error)}."
        return room
    names = sorted(name for name in names if not name.startswith("."))  # hidden files are still being written
    if len(names) > MOST_FILES:
        room.note = f"There are more than {MOST_FILES} files. The others aren't read."
    for name in names[:MOST_FILES]:
        try:
            if result := _result(folder / name):
                room.results.append(result)
                room.active += time.time() - os.lstat(folder / name).st_mtime < ACTIVE_S
        except FileNotFoundError:  # the file's learner has just stopped sharing
            pass
        except Unfit as error:
            room.problems.append(Problem(name, str(error)))
        except OSError as error:
            room.problems.append(Problem(name, f"it can't be read: {cause(error)}"))
    return room


def _result(path: Path) -> Result | None:
    """The result in this file; None if the file was just created and is still empty. Raises Unfit and OSError."""
    content = _content(path)
    if not content and time.time() - os.lstat(path).st_mtime < NEW_S:
        return None
    if content.count(b"[") + content.count(b"{") > MOST_PARTS:
        raise Unfit("it has more parts than any result")
    try:
        result = json.loads(content.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise Unfit("it isn't text in UTF-8") from None
    except (json.JSONDecodeError, RecursionError):
        raise Unfit("it isn't JSON") from None
    except ValueError as error:
        raise Unfit(str(error) if isinstance(error, Unfit) else "it has a number that is far too long") from None
    sharing.check(result)
    if path.name != f"{result['name']}.json":
        raise Unfit("the name in it isn't the file's name, so it may be somebody else's")
    return result


def _no_number(_: str) -> NoReturn:
    raise Unfit("it has NaN or infinity in place of a number")


def _content(path: Path) -> bytes:
    """The content of a plain file of moderate size. Raises Unfit for anything else, without opening it or waiting."""
    mode = os.lstat(path).st_mode
    if stat.S_ISREG(mode):
        # Since the first look, something else may have taken the file's place.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISREG(mode):
                content = file.read(MOST_BYTES + 1)
                if len(content) > MOST_BYTES:
                    raise Unfit(f"it is {BOUNDS}")
                return content
    raise Unfit(f"it is {KINDS.get(stat.S_IFMT(mode), 'a device')}, and only plain files are read")


class Handler(BaseHTTPRequestHandler):
    """Answers GET / and nothing else."""

    timeout = 5  # seconds per request, so that a silent client cannot keep a thread busy
    server: "Server"

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path != "/":
            self.send_error(404)
            return
        asked = parse_qs(address.query)
        body = self.server.page(asked.get("notebook", [""])[0], renew="still" not in asked).encode()
        self.send_response(200)
        headers = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in (headers | board_page.HEADERS).items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):  # the reader may be gone
            self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Serves the room. The folder is read at most once every READ_EVERY_S, however many readers ask."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int):
        self.folder = folder
        self.lock = threading.Lock()
        self.read_s = -READ_EVERY_S
        self.room = Room(str(folder), "", note="The folder hasn't answered yet.")
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise InputError(
                f"port {port} can't be used ({error.strerror}): choose another --port, or leave it out."
            ) from None

    def page(self, notebook: str, renew: bool) -> str:
        """The page about one notebook or about all. While the folder does not answer, it shows the last known state."""
        if self.lock.acquire(timeout=PATIENCE_S):
            try:
                if time.monotonic() - self.read_s >= READ_EVERY_S:
                    self.room = read(self.folder)
                    self.read_s = time.monotonic()
            finally:
                self.lock.release()
        return board_page.page(self.room, notebook, renew)

    def handle_error(self, *_) -> None:
        pass  # a connection broke off, which is no reason for a message
