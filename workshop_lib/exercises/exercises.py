"""The exercises of each notebook, as its source has them, and how many of them a learner has solved.

The learner's own notebook isn't asked: once an exercise is solved, no stub is left in it to count.
"""

import functools
import re
from pathlib import Path
from typing import NamedTuple

from workshop_lib import paths
from workshop_lib.exercises import learners_log

NOTEBOOK = re.compile(r"\d\d[a-z]?_\w+")  # the name of a notebook of the workshop
CORE_PATH = "core path"  # the track of the notebooks that everybody should do
TRACK = re.compile(r'# %% \[markdown\] track="([^"]+)"\n')  # the first line of a source
CELL = re.compile(r"^# %%(?= |$)", re.MULTILINE)
HEADING = re.compile(r"^# (#+) (.*)$", re.MULTILINE)
# What an answer defines: a file, a function or class, a dictionary or list, or the path of a script.
NAME = re.compile(r"^(?:%%writefile \S*/([\w.]+)$|(?:def|class) (\w+)|(\w+) = (?:[\[{]|paths\.SCRIPTS))", re.MULTILINE)
CHECK = re.compile(r"^(?!team\.)[\w.]+\.\w+\((.*)\)$")


def defined_names(answer: str) -> list[str]:
    """The names that a cell with an answer defines."""
    return [next(filter(None, found.groups())) for found in NAME.finditer(answer)]


def checked_name(code: str, defined: list[str]) -> str:
    """The one of these names that the last line of a cell checks; "" if it checks none."""
    call = CHECK.match(code.rstrip().rpartition("\n")[2])
    return next((name for name in defined if call and re.search(rf"\b{re.escape(name)}\b", call[1])), "")


class ExercisePlace(NamedTuple):
    """Where an exercise stands in its notebook: in the core or in a deeper section, and under which heading."""

    is_core: bool
    heading: str


def of_source(text: str) -> dict[str, ExercisePlace]:
    """The exercises of a source by name, in their order."""
    found = {}
    defined: list[str] = []
    is_core = True
    heading = ""
    for cell in CELL.split(text):
        if cell.startswith(" [markdown]"):
            for level, title in HEADING.findall(cell):
                heading = title.replace("`", "")
                if level == "##":
                    is_core = not title.startswith("Deeper")
            continue
        code = re.sub(r"^# (?=%%)", "", cell.partition("\n")[2], flags=re.MULTILINE)
        if "# <solution>" in code:
            defined = defined_names(code)
        if exercise := checked_name(code, defined):
            found[exercise] = ExercisePlace(is_core, heading)
            defined = []
    return found


@functools.cache
def by_notebook(sources: Path = paths.SOURCES) -> dict[str, dict[str, ExercisePlace]]:
    """The exercises of all notebooks, by the notebook's name in the order of their numbers."""
    files = sorted(path for path in sources.glob("*.py") if NOTEBOOK.fullmatch(path.stem))
    return {path.stem: of_source(path.read_text(encoding="utf-8")) for path in files}


def solutions_of(notebook: Path) -> Path:
    """The file of a notebook's solutions, with a name of its own, so that nobody takes its tab for their notebook's."""
    return notebook.parent / "solutions" / f"{notebook.stem}_solutions.ipynb"


@functools.cache
def tracks(sources: Path = paths.SOURCES) -> dict[str, str]:
    """The track of each notebook, by the notebook's name in the order of their numbers.

    A source names its track on its first line. A notebook without one belongs to no track: "".
    """
    found = {}
    for name in by_notebook(sources):
        first_line = TRACK.match((sources / f"{name}.py").read_text(encoding="utf-8"))
        found[name] = first_line[1] if first_line else ""
    return found


def is_on_core_path(notebook: str) -> bool:
    return tracks().get(notebook) == CORE_PATH


def solved() -> set[tuple[str, str]]:
    """The notebook and name of each check that this learner has passed."""
    checks = [event for event in learners_log.kept() if event.get("what") == "check"]
    return {(event["notebook"], event["exercise"]) for event in checks if event.get("passed") is True}


def standing(notebook: str) -> str:
    """How many exercises are solved in this notebook and on the core path, and which notebook comes next.

    "2 of 2 here, 9 of 24 on the core path, next: 02". The next one is named once this notebook's core is solved.
    Empty for a notebook without exercises of the workshop.
    """
    here = by_notebook().get(notebook)
    if not here:
        return ""
    known = {(name, exercise) for name, exercises in by_notebook().items() for exercise in exercises}
    done = solved() & known
    path = {name: exercises for name, exercises in by_notebook().items() if is_on_core_path(name)}
    of_path = sum(map(len, path.values()))
    parts = [
        f"{sum((notebook, name) in done for name in here)} of {len(here)} here",
        f"{sum(each in path for each, _ in done)} of {of_path} on the core path",
    ]

    def is_open(name: str) -> bool:
        """Whether the core of this notebook has an exercise that isn't solved."""
        return any(place.is_core and (name, exercise) not in done for exercise, place in by_notebook()[name].items())

    following = next(filter(is_open, path), "")
    if following and not is_open(notebook):
        parts.append(f"next: {following.partition('_')[0]}")
    return ", ".join(parts)
