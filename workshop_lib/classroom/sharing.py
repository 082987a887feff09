"""Shares a learner's results with the room, once they ask for it: under a pseudonym, as a file in a shared folder.

`Result` is the type of that file, and says what each field may hold. `summary` makes a Result from what learner.py
keeps, and the board accepts nothing else. A Result has no code, no answers and no paths. This module reads none of the
room's files.
"""

import contextlib
import json
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict, get_args, get_origin, get_type_hints, is_typeddict

from workshop_lib import learner, paths
from workshop_lib.errors import InputError
from workshop_lib.training.cores import usable_cores

SCHEMA = 1
MOST = 150  # entries per list (predictions, checks, …) of one learner


class Text(NamedTuple):
    """Text that matches a pattern, described in words."""

    pattern: str
    words: str

    def holds(self, value: Any) -> bool:
        return isinstance(value, str) and re.fullmatch(self.pattern, value, re.ASCII) is not None


class Number(NamedTuple):
    """A finite number in a range. With `may_lack`, it may also be None."""

    low: float
    high: float
    whole: bool = False
    may_lack: bool = False

    @property
    def words(self) -> str:
        kind = "whole number" if self.whole else "number"
        return f"a {kind} from {self.low:g} to {self.high:g}"

    def holds(self, value: Any) -> bool:
        if value is None:
            return self.may_lack
        return type(value) in ((int,) if self.whole else (int, float)) and self.low <= value <= self.high


class Game(NamedTuple):
    """The score that learners can beat in an exercise."""

    title: str
    unit: str
    best: Callable  # max or min


GAMES = {
    "best_mesh": Game("The fastest mesh (notebook 12)", "times as fast as FSDP alone", max),
    "my_buckets": Game("Buckets in the fewest messages (notebook 05)", "messages", min),
    "interleaved": Game("The pipeline that keeps least (notebook 11b)", "pieces, all ranks together", min),
}
NAME = Text(r"[a-z][a-z0-9-]{1,19}", "2 to 20 small letters, digits and dashes, beginning with a letter")
NOTEBOOK = Text(r"\d\d[a-z]?_[a-z0-9_]{1,40}", "the name of a notebook")
WORDS = Text(r"[ -~°±²³µ×–—‘’“”…≤≥]{0,300}", "a short line of plain text")
ANY_NUMBER = Number(-1e12, 1e12)


class Guess(TypedDict):
    notebook: Annotated[str, NOTEBOOK]
    question: Annotated[str, WORDS]
    unit: Annotated[str, WORDS]
    guess: Annotated[float, ANY_NUMBER]
    measured: Annotated[float | None, ANY_NUMBER._replace(may_lack=True)]


class Solved(TypedDict):
    notebook: Annotated[str, NOTEBOOK]
    exercise: Annotated[str, Text(r"[A-Za-z_][A-Za-z0-9_.]{0,39}", "the name of an exercise")]


class Speed(TypedDict):
    """The fastest training with this backend on this many ranks, in the last epoch."""

    backend: Annotated[str, Text(r"[a-z][a-z0-9-]{0,29}", "the name of a backend")]
    world_size: Annotated[int, Number(1, 100_000, whole=True)]
    samples_per_s: Annotated[float, Number(0, 1e9)]


class Score(TypedDict):
    exercise: Annotated[str, Text("|".join(GAMES), "an exercise with something to beat")]
    score: Annotated[float, ANY_NUMBER]


class Result(TypedDict):
    schema: Annotated[int, Number(SCHEMA, SCHEMA, whole=True)]
    name: Annotated[str, NAME]
    made: Annotated[str, Text(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "a time in UTC")]
    cores: Annotated[int, Number(1, 100_000, whole=True)]
    predictions: list[Guess]
    solved: list[Solved]
    speeds: list[Speed]
    scores: list[Score]


class Unfit(ValueError):
    """Raised for data that is not a Result. The message says why, without quoting the data."""


def check(value: Any, kind: Any = Result, where: str = "it") -> None:
    """Raise Unfit if `value` is not of this type, or if one of its fields is out of range."""
    if get_origin(kind) is Annotated:
        rule = get_args(kind)[1]
        if not rule.holds(value):
            raise Unfit(f"{where} isn't {rule.words}")
    elif get_origin(kind) is list:
        if not isinstance(value, list) or len(value) > MOST:
            raise Unfit(f"{where} isn't a list of at most {MOST}")
        for each in value:
            check(each, get_args(kind)[0], f"an entry of {where}")
    else:
        fields = get_type_hints(kind, include_extras=True)
        if not isinstance(value, dict):
            raise Unfit(f"{where} isn't an object with named fields")
        if value.keys() != fields.keys():
            raise Unfit(f"{where} has other fields than it should")
        for name, each in fields.items():
            check(value[name], each, f"'{name}'")


def summary(name: str, events: Iterable) -> Result:
    """What a learner shares of the events they kept: first guesses, solved exercises, best speeds and scores."""
    events = [event for event in events if isinstance(event, dict)]
    predictions: dict[tuple, Guess] = {}
    for _, guess in _each(events, "prediction", Guess):
        first = predictions.setdefault((guess["notebook"], guess["question"]), guess)
        first["measured"] = guess["measured"] if first["measured"] is None else first["measured"]
    solved = {
        tuple(item.values()): item for event, item in _each(events, "check", Solved) if event.get("passed") is True
    }
    speeds: dict[tuple, Speed] = {}
    for _, speed in _each(events, "training", Speed):
        of = (speed["backend"], speed["world_size"])
        speeds[of] = max(speeds.get(of, speed), speed, key=lambda each: each["samples_per_s"])
    scores: dict[str, Score] = {}
    for _, score in _each(events, "check", Score):
        best = GAMES[of := score["exercise"]].best
        scores[of] = best(scores.get(of, score), score, key=lambda each: each["score"])
    return {
        "schema": SCHEMA,
        "name": name,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": usable_cores(),
        "predictions": list(predictions.values())[-MOST:],
        "solved": list(solved.values())[-MOST:],
        "speeds": list(speeds.values())[-MOST:],
        "scores": list(scores.values()),
    }


def _each(events: list[dict], what: str, kind: Any) -> Iterator[tuple[dict, Any]]:
    """The events of this kind, each with the part that is shared. Events that do not fit are left out."""
    assert is_typeddict(kind)
    for event in events:
        item = {field: event.get(field) for field in kind.__annotations__}
        with contextlib.suppress(Unfit):
            if event.get("what") == what:
                check(item, kind)
                yield event, item


class Sharing(NamedTuple):
    """The folder in which a learner shares, and their name there. It is kept beside the learner's own file."""

    folder: str
    name: str

    @property
    def file(self) -> Path:
        return Path(self.folder, f"{self.name}.json")


def _own_file() -> Path:
    return paths.LEARNER.with_name("sharing.json")


def chosen() -> Sharing | None:
    """The folder and name that the learner chose; None for most learners, who share nothing."""
    try:
        kept = json.loads(_own_file().read_text("utf8"))
        return Sharing(str(kept["folder"]), str(kept["name"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def start(sharing: Sharing) -> None:
    """Share from now on. Raises InputError if somebody else has this name in the folder, and OSError."""
    before = chosen()
    publish(sharing, is_new=sharing != before or not sharing.file.exists())
    with paths.replacing(_own_file()) as temporary:
        temporary.write_text(json.dumps(sharing._asdict()), "utf8")
    if before and before != sharing:
        before.file.unlink(missing_ok=True)


def stop() -> Sharing | None:
    """Stop sharing and remove the shared file; return what was shared until now, or None."""
    before = chosen()
    if before:
        before.file.unlink(missing_ok=True)
        _own_file().unlink()
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
        self.size = -1
        self.thread = threading.Thread()
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
