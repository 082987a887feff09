"""Routes through the workshop for an instructor: which sections of which notebooks, in how many minutes each.

Routes are data (assets/instructor/routes.toml); steps.md beside this file says what to say. `rehearse` runs the cells
of a route, from the notebooks with solutions, and measures how long each step's cells take on this machine.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import nbformat

from workshop_lib import paths
from workshop_lib.classroom import execute, needs
from workshop_lib.classroom.generate import Effort, is_deeper, pieces, pristine
from workshop_lib.errors import InputError

FOLDER = paths.ROOT / "assets" / "instructor"
REHEARSED = paths.BUILD / "rehearsal"
STEP = "workshop_step"  # in a cell's metadata: the number of the step that it belongs to
CORE = "core"  # stands for all sections that aren't marked "Deeper"
OPENING = " (opening)"  # after a heading, this leaves out the sections below it


@dataclass(frozen=True)
class RouteStep:
    """Some minutes spent on sections of a notebook, which are named by their headings, or without a notebook.

    who: "everyone" if everyone works, "instructor" if the instructor works on the projector.
    """

    title: str
    minutes: int
    notebook: str = ""
    sections: tuple[str, ...] = ()
    who: str = "instructor"


@dataclass(frozen=True)
class Route:
    name: str
    title: str
    minutes: int
    steps: tuple[RouteStep, ...]

    @property
    def slack_minutes(self) -> int:
        """The minutes that no step has claimed."""
        return self.minutes - sum(step.minutes for step in self.steps)


def load() -> dict[str, Route]:
    """Every route by its name."""
    content = tomllib.loads((FOLDER / "routes.toml").read_text(encoding="utf-8"))
    routes = {}
    for name, about in content["route"].items():
        steps = [content["step"][each.pop("step")] | each for each in about["steps"]]
        chosen = tuple(RouteStep(**step | {"sections": tuple(step.get("sections", ()))}) for step in steps)
        routes[name] = Route(name, about["title"], about["minutes"], chosen)
    return routes


def route(name: str) -> Route:
    """The route with this name. Raises InputError, listing all names, if there is none."""
    routes = load()
    if name not in routes:
        raise InputError(f"there is no route {name!r}; there are {', '.join(routes)}.")
    return routes[name]


def stands_in(sections: tuple[str, ...], under: tuple[str, ...]) -> bool:
    """Whether text or code under these headings belongs to one of the sections."""
    core = CORE in sections and len(under) > 1 and not is_deeper(under)
    return core or bool(set(sections) & {*under[1:], under[-1] + OPENING})


def effort(step: RouteStep) -> Effort:
    """What a step asks of the room. An instructor shows exercises, but doesn't do them, and explains outputs."""
    total = Effort()
    if step.notebook:
        cells = pristine(step.notebook)[0].cells
        for index, text, under in pieces(cells):
            if stands_in(step.sections, under):
                total.add(cells[index].cell_type, text)
    if step.who == "instructor":
        total.exercise_minutes = total.cells = 0
    return total


@dataclass(frozen=True)
class Code:
    """The code cells of a notebook with solutions: the index, the source and the headings of each."""

    notebook: nbformat.NotebookNode
    at: list[int]
    sources: list[str]
    under: list[tuple[str, ...]]

    @classmethod
    def of(cls, name: str) -> "Code":
        _, notebook = pristine(name)
        code = [piece for piece in pieces(notebook.cells) if notebook.cells[piece[0]].cell_type == "code"]
        return cls(notebook, *map(list, zip(*code, strict=True)))

    def of_sections(self, sections: tuple[str, ...]) -> list[int]:
        """The numbers of the code cells in these sections."""
        return [number for number, under in enumerate(self.under) if stands_in(sections, under)]

    def before(self, own: list[int]) -> list[int]:
        """The numbers of the cells that must run before `own`: cells at the top, and cells that any of these need."""
        top = [number for number, under in enumerate(self.under) if len(under) < 2]
        return sorted({*top, *needs.before(self.sources, [*top, *own])} - {*own})


def assembled(name: str, steps: dict[int, RouteStep]) -> nbformat.NotebookNode:
    """A notebook with the cells of these steps and the cells that they need, taken from the notebook with solutions.

    Each cell is marked with the number of the first step that needs it.
    """
    code = Code.of(name)
    of_step: dict[int, int] = {}
    for number, step in steps.items():
        own = code.of_sections(step.sections)
        of_step = dict.fromkeys([*code.before(own), *own], number) | of_step
    for each, number in of_step.items():
        code.notebook.cells[code.at[each]].metadata[STEP] = number
    code.notebook.cells = [code.notebook.cells[code.at[each]] for each in sorted(of_step)]
    return code.notebook


def before(step: RouteStep) -> list[str]:
    """The sections with cells that must run before a step, besides the cells at the top of its notebook."""
    code = Code.of(step.notebook)
    needed = code.before(code.of_sections(step.sections))
    return list(dict.fromkeys(code.under[each][-1] for each in needed if len(code.under[each]) > 1))


@dataclass
class Rehearsed:
    """A step as it ran: its cells, their seconds, and the error of its notebook, if there was one."""

    step: RouteStep
    cells: int = 0
    seconds: float = 0.0
    error: str = ""


def rehearse(chosen: Route) -> Iterator[Rehearsed]:
    """Run a route's cells and yield each step. Steps in a row from one notebook share a kernel."""
    env = execute.without_learner(REHEARSED / "notebooks")
    for notebook, group in groupby(enumerate(chosen.steps, 1), key=lambda pair: pair[1].notebook):
        steps = dict(group)
        done = {number: Rehearsed(step) for number, step in steps.items()}
        if notebook:
            path = REHEARSED / chosen.name / f"{min(steps):02}_{notebook}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(assembled(notebook, steps), path)
            outcome = execute.run_notebook(path, path, env=env)
            for cell in nbformat.read(path, as_version=4).cells:
                result = done[cell.metadata[STEP]]
                result.cells += 1
                result.seconds += execute.seconds_of(cell)
            done[max(steps)].error = str(outcome) if outcome.error else ""
        yield from done.values()
