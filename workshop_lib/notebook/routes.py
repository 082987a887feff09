"""Routes through the workshop for an instructor: which sections of which notebooks, in how many minutes each.

They are data (assets/instructor/routes.toml); steps.md beside it says what to say. `rehearse` runs the cells of a
route, from the notebooks with solutions, and says how long those of each step take on this machine.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import nbformat

from workshop_lib import paths
from workshop_lib.errors import InputError
from workshop_lib.notebook import execute
from workshop_lib.notebook.generate import NOT_READ, NOTEBOOKS, Effort

FOLDER = paths.ROOT / "assets" / "instructor"
REHEARSED = paths.BUILD / "rehearsal"
HEADING = re.compile(r"(#+) (.+)")
STEP = "workshop_step"  # in a cell's metadata: whose cell it is
CORE = "core"  # in place of headings: all sections that aren't marked "Deeper"
OPENING = " (opening)"  # after a heading: without the sections below it


@dataclass(frozen=True)
class Step:
    """Some minutes with sections of a notebook, by their headings, or without any notebook.

    who: who works, the instructor on the projector or everyone. needs: sections whose cells must have run before.
    """

    title: str
    minutes: int
    notebook: str = ""
    sections: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    who: str = "instructor"


@dataclass(frozen=True)
class Route:
    name: str
    title: str
    minutes: int
    steps: tuple[Step, ...]


def load() -> dict[str, Route]:
    """Every route by its name."""
    told = tomllib.loads((FOLDER / "routes.toml").read_text(encoding="utf-8"))
    routes = {}
    for name, about in told["route"].items():
        chosen = [_step(told["step"][each.pop("step")] | each) for each in about["steps"]]
        routes[name] = Route(name, about["title"], about["minutes"], tuple(chosen))
    return routes


def _step(about: dict[str, Any]) -> Step:
    about |= {key: tuple(value) for key, value in about.items() if isinstance(value, list)}
    return Step(**about)


def route(name: str) -> Route:
    """The route of this name. Raises InputError with all names if there is none."""
    routes = load()
    if name not in routes:
        raise InputError(f"there is no route {name!r}; there are {', '.join(routes)}.")
    return routes[name]


def pieces(cells: list) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """(index, text, the headings that it stands under) of each cell, a text cell in one piece per heading."""
    under: list[tuple[int, str]] = []
    for index, cell in enumerate(cells):
        texts = [cell.source]
        if cell.cell_type == "markdown":  # without the hints, whose code has lines that look like headings
            texts = re.split(r"^(?=#+ )", NOT_READ.sub(" ", cell.source), flags=re.MULTILINE)
        for text in filter(None, texts):
            if cell.cell_type == "markdown" and (heading := HEADING.match(text)):
                level = len(heading[1])
                under = [each for each in under if each[0] < level] + [(level, heading[2].strip())]
            yield index, text, tuple(title for _, title in under)


def stands_in(sections: tuple[str, ...], under: tuple[str, ...]) -> bool:
    """Whether what stands under these headings belongs to one of the sections."""
    core = CORE in sections and len(under) > 1 and not under[1].startswith("Deeper")
    return core or bool(set(sections) & {*under[1:], under[-1] + OPENING})


def effort(step: Step) -> Effort:
    """What a step asks of the people in the room. An instructor shows exercises, but doesn't do them."""
    total = Effort()
    if step.notebook:
        cells = nbformat.read(NOTEBOOKS / f"{step.notebook}.ipynb", as_version=4).cells
        for index, text, under in pieces(cells):
            if stands_in(step.sections, under):
                total.add(cells[index].cell_type, text)
    if step.who == "instructor":
        total.exercises = 0
    return total


def assembled(name: str, steps: dict[int, Step]) -> nbformat.NotebookNode:
    """A notebook with the cells of these steps, each marked with its step's number, from the one with solutions.

    The cells at its top, which every section needs, count for the first step.
    """
    notebook = nbformat.read(NOTEBOOKS / "solutions" / f"{name}.ipynb", as_version=4)
    code = [(index, under) for index, _, under in pieces(notebook.cells) if notebook.cells[index].cell_type == "code"]
    chosen = []
    for index, under in code:
        at = min(steps) if len(under) < 2 else None
        for number, step in steps.items():
            if at is None and stands_in(step.needs + step.sections, under):
                at = number
        if at is not None:
            notebook.cells[index].metadata[STEP] = at
            chosen.append(notebook.cells[index])
    notebook.cells = chosen
    return notebook


@dataclass
class Rehearsed:
    """A step as it ran: its cells, their seconds, and the error of its notebook, if there was one."""

    step: Step
    cells: int = 0
    seconds: float = 0.0
    error: str = ""


def rehearse(chosen: Route) -> Iterator[Rehearsed]:
    """Run a route's cells and yield each step. Steps in a row from one notebook share a kernel."""
    for notebook, group in groupby(enumerate(chosen.steps, 1), key=lambda pair: pair[1].notebook):
        steps = dict(group)
        done = {number: Rehearsed(step) for number, step in steps.items()}
        if notebook:
            path = REHEARSED / chosen.name / f"{min(steps):02}_{notebook}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(assembled(notebook, steps), path)
            outcome = execute.run_notebook(path, path)
            for cell in nbformat.read(path, as_version=4).cells:
                result = done[cell.metadata[STEP]]
                result.cells += 1
                result.seconds += execute.seconds_of(cell)
            done[max(steps)].error = str(outcome) if outcome.error else ""
        yield from done.values()
