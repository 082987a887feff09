"""What a learner shows the room, once they've asked for it: results under a pseudonym, as a file in a shared folder.

`Result` is the type of that file, with what each field may hold. `summary` makes one of what learner.py keeps, and the
board takes nothing that doesn't fit it. It has no code, no answers and no paths. Nothing is read from the folder here.
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
MOST = 150  # predictions, checks, … of one learner


class Text(NamedTuple):
    """Text that matches a pattern, described in words."""

    pattern: str
    words: str

    def holds(self, value: Any) -> bool:
        return isinstance(value, str) and re.fullmatch(self.pattern, value, re.ASCII) is not None


class Number(NamedTuple):
    """A finite number in a range; `may_lack`: or None."""

    low: float
    high: float
    whole: bool = False
    may_lack: bool = False

    @property
    def words(self) -> str:
        return f"a {'whole ' * self.whole}number from {self.low:g} to {self.high:g}"

    def holds(self, value: Any) -> bool:
        if value is None:
            return self.may_lack
        return type(value) in ((int,) if self.whole else (int, float)) and self.low <= value <= self.high


class Game(NamedTuple):
    """What there is to beat in an exercise."""

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
    """Something is no Result; the text says why, without quoting it."""


def check(value: Any, kind: Any = Result, where: str = "it") -> None:
    """Raise Unfit for what is not of this type, or not in the range of one of its fields."""
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
    """What a learner shows of the events that were kept: first guesses, solved exercises, best speeds and scores."""
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
    """The events of this kind with what is shared of them; those that don't fit are left out."""
    assert is_typeddict(kind)
    for event in events:
        item = {field: event.get(field) for field in kind.__annotations__}
        with contextlib.suppress(Unfit):
            if event.get("what") == what:
                check(item, kind)
                yield event, item


class Sharing(NamedTuple):
    """Where a learner shares, and as whom. Kept beside the learner's own file."""

    folder: str
    name: str

    @property
    def file(self) -> Path:
        return Path(self.folder, f"{self.name}.json")


def _own_file() -> Path:
    return paths.LEARNER.with_name("sharing.json")


def chosen() -> Sharing | None:
    """What the learner chose; None for most, who share nothing."""
    try:
        kept = json.loads(_own_file().read_text("utf8"))
        return Sharing(str(kept["folder"]), str(kept["name"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def start(sharing: Sharing) -> None:
    """Share from now on. Raises InputError for a name that somebody has in this folder, and OSError."""
    before = chosen()
    publish(sharing, is_new=sharing != before or not sharing.file.exists())
    with paths.replacing(_own_file()) as temporary:
        temporary.write_text(json.dumps(sharing._asdict()), "utf8")
    if before and before != sharing:
        before.file.unlink(missing_ok=True)


def stop() -> Sharing | None:
    """Share no more, and take away what was shared; returns what there was to stop."""
    before = chosen()
    if before:
        before.file.unlink(missing_ok=True)
        _own_file().unlink()
    return before


def publish(sharing: Sharing, is_new: bool = False) -> None:
    """Write the learner's file in the folder, whole at once: whoever reads meanwhile gets the old one or the new one.

    Its temporary file has a random name and is made by this process, so nobody can put a link in its place.
    """
    text = json.dumps(summary(sharing.name, learner.kept()), allow_nan=False)
    number, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=sharing.folder)
    try:
        with os.fdopen(number, "w", encoding="utf8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # whoever runs the board may be somebody else
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
    """Shares again after each cell that added to the learner's file, in a thread: no cell waits for the folder."""

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
        with contextlib.suppress(Exception):  # a room without its folder is no reason to disturb a cell
            while (size := self._size()) != self.size:
                publish(sharing)
                self.size = size
