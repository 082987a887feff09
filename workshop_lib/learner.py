"""The learner's log: their predictions and checks, as one JSON object per line in a file of their own.

Only notebooks write this file, and updates of the workshop do not touch it. An event that cannot be written is dropped,
because no cell may fail for the sake of the log.
"""

import contextlib
import inspect
import json
import linecache
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from workshop_lib import paths

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


def shell() -> Any:
    """This process's IPython shell; None if it isn't in IPython. IPython isn't imported for it."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    return getattr(shell(), "kernel", None) is not None


def outdated(definition: Any) -> bool:
    """Whether a newer cell should have defined this function or class again, but ended with an error before it did.

    The last cell in the history that contains the definition is then not the cell that the definition is from.
    """
    ipython = shell()
    name = getattr(definition, "__name__", "")
    if ipython is None or not name or ipython.user_ns.get(name) is not definition:
        return False
    parts = vars(definition).values() if inspect.isclass(definition) else [inspect.unwrap(definition)]
    files = [part.__code__.co_filename for part in parts if hasattr(part, "__code__")]
    if not files or not ipython.compile.format_code_name(files[0]):  # it is not from a cell
        return False
    begins = re.compile(rf"^(?:async +)?(?:def|class) +{name}\b", re.MULTILINE)
    cells = [cell for cell in ipython.history_manager.input_hist_parsed if begins.search(cell)]
    return bool(cells) and cells[-1].strip() != "".join(linecache.getlines(files[0])).strip()


def notebook() -> Path | None:
    """The notebook file whose kernel this process is; None outside a notebook, or if the front end does not name it."""
    named = os.environ.get("JPY_SESSION_NAME") or getattr(shell(), "user_ns", {}).get("__vsc_ipynb_file__")
    return Path(named) if named else None


def own_notebook() -> str:
    """The name of the notebook that this learner works in; "" outside a notebook or in a notebook of solutions."""
    file = notebook()
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
