"""The learner's log: their predictions and checks, as one JSON object per line in a file of their own.

Only notebooks write this file, and updates of the workshop do not touch it. An event that cannot be written is dropped,
because no cell may fail for the sake of the log.
"""

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from workshop_lib import paths
from workshop_lib.machine import kernel

TEXT_LIMIT = 300  # characters of a question or a failed property


class Prediction(NamedTuple):
    """A learner's guess, logged when the learner commits it, and again with `measured` after the measurement."""

    question: str
    unit: str
    guess: float
    measured: float | None = None


class Check(NamedTuple):
    """The verdict on an exercise, with the first property that fails."""

    exercise: str
    passed: bool
    failed: str = ""


def own_notebook() -> str:
    """The name of the notebook that this learner works in; "" outside a notebook or in a notebook of solutions."""
    file = kernel.notebook_file()
    return file.stem if file is not None and file.parent.name != "solutions" else ""


def keep(event: Prediction | Check) -> None:
    """Append `event` with the time and the notebook's name, in one write.

    Does nothing outside a notebook or in a notebook of solutions.
    """
    name = own_notebook()
    if not name:
        return
    about = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "notebook": name}
    about["what"] = type(event).__name__.lower()
    values = {key: value[:TEXT_LIMIT] if isinstance(value, str) else value for key, value in event._asdict().items()}
    with contextlib.suppress(OSError, TypeError, ValueError):
        line = json.dumps(about | values, default=float) + "\n"
        paths.LEARNER.parent.mkdir(parents=True, exist_ok=True)
        with open(paths.LEARNER, "ab", buffering=0) as file:
            file.write(line.encode())


def kept() -> Iterator[dict]:
    """Every logged event, oldest first; damaged lines are left out."""
    if not paths.LEARNER.is_file():
        return
    for line in paths.LEARNER.read_text("utf8", "replace").splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)
