"""Notebooks as assignments for nbgrader: a cell for each answer, and a locked cell with its check, worth a point.

The assignments are made from the notebooks' sources. nbgrader's marks replace our markers around a solution. The text
of the stub stands above them as comments, because nbgrader replaces a solution by a stub of its own. A graded cell
raises if its check does not pass, because nbgrader counts errors. The cells that start ranks are locked, so that a
check finds its ranks.
"""

import ast
import itertools
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jupytext
import nbformat

from workshop_lib import paths
from workshop_lib.classroom import course_map, generate
from workshop_lib.errors import InputError
from workshop_lib.exercises.exercises import checked_name, defined_names
from workshop_lib.exercises.sources import SolutionBlock, replaced, split

SCHEMA_VERSION = 3  # version of nbgrader's metadata
POINTS = 1  # points per exercise
BEGIN = "### BEGIN SOLUTION"
END = "### END SOLUTION"
# What is left out of a stub: nbgrader adds a line that raises, and the words would ask twice.
ASKED = re.compile(
    r' *# raise NotImplementedError\("(?:your code here|and here)"\)\n|(?:: |  # )?your code here(?:: )?'
)
SOLUTION = re.compile(r"<details><summary>Solution</summary>.*?</details>", re.DOTALL)
LINK = re.compile(r"\]\((\d\d[a-z]?_\w+)\.ipynb")
CONFIG = """\
# Settings of this course for nbgrader, written by `workshop export-nbgrader`. It leaves them alone once they're there.
import os

c = get_config()  # noqa: F821
c.Execute.timeout = 300  # seconds for a cell: some of them train
os.environ.setdefault("WORKSHOP_PROFILE", "quick")  # grading runs whole notebooks, and this makes their runs short
os.environ["WORKSHOP_WIDGETS"] = "0"
"""


class Assignment(NamedTuple):
    """An assignment's file in the course, and the names of its exercises."""

    file: Path
    exercises: list[str]


def export(stems: Sequence[str], course: Path) -> list[Assignment]:
    """Write an assignment for each of these notebooks (all notebooks if none is named) into the folder of a course.

    Raises InputError, before anything is written, for an unknown notebook or an assignment that exists already.
    """
    files = {stem: course / "source" / stem / f"{stem}.ipynb" for stem in generate.chosen(stems)}
    if there := [file for file in files.values() if file.exists()]:
        raise InputError(
            f"{there[0]} is there already, perhaps with your changes. Move it away, or give another --out."
        )
    written = []
    for stem, file in files.items():
        text, exercises = assignment(generate.NOTEBOOKS / "source" / f"{stem}.py")
        with paths.replacing(file) as temporary:
            temporary.write_text(text, encoding="utf-8")
        if "scripts/" in text:
            shutil.copytree(paths.SCRIPTS, file.parent / "scripts", dirs_exist_ok=True)
        written.append(Assignment(file, exercises))
    config = course / "nbgrader_config.py"
    if not config.exists():
        config.write_text(CONFIG, encoding="utf-8")
    return written


def assignment(source: Path) -> tuple[str, list[str]]:
    """The instructor's notebook made from this source, with solutions, and the names of its exercises."""
    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    named = list(_cells(notebook.cells))
    notebook.cells = [cell for cell, _ in named]
    exercises = [name for _, name in named if name]
    files = [name for name in exercises if "." in name]
    if files:  # these files are in a folder that everyone graded on this machine shares
        setup = next(cell for cell in notebook.cells if cell.cell_type == "code")
        removed = [f'(folder / "{name}").unlink(missing_ok=True)' for name in files]
        setup.source += "\n".join(["", "", "# So that nobody is graded for a file of somebody else's.", *removed])
    shown, _ = generate.pristine(source.stem)
    time = course_map.TIME.search(shown.cells[0].source)
    return generate.finished(notebook, time[0] if time else ""), exercises


def _cells(cells: list) -> Iterator[tuple[nbformat.NotebookNode, str]]:
    """An assignment's cells, made from a source's: graded cells with the name of their exercise, others with ""."""
    setup = next(cell for cell in cells if cell.cell_type == "code")
    starts = itertools.count(1)
    answer = setup  # the answer whose check is still to come
    names = []  # those that it defines
    for cell in cells:
        if cell.cell_type != "code":
            cell.source = LINK.sub(r"](../\1/\1.ipynb", SOLUTION.sub("", cell.source)).strip()
            yield cell, ""
            continue
        if "# <solution>" in cell.source:
            code, cell.source = _parts(cell.source)
            names = defined_names(code)
            answer = nbformat.v4.new_code_cell(code)
            yield answer, ""
        if checked := checked_name(cell.source, names):
            _mark(answer, checked, solution=True)
            _mark(cell, f"check-{checked}", grade=True, locked=True, points=POINTS)
            cell.source += ".must_pass()"
            names = []
        elif cell is setup or "ranks.start(" in cell.source:
            _mark(cell, f"start-{next(starts)}", locked=True)
        if cell.source:
            yield cell, checked


def _mark(cell: nbformat.NotebookNode, name: str, **marks) -> None:
    """Give a cell nbgrader's metadata."""
    about = {"grade": False, "solution": False, "locked": False, "task": False} | marks
    cell.metadata["nbgrader"] = {"schema_version": SCHEMA_VERSION, "grade_id": name.replace(".", "-"), **about}


def _parts(code: str) -> tuple[str, str]:
    """A cell's answer with nbgrader's marks, and the code after it in the same cell: its check, if there is one."""
    if not re.match(r"\w+ = \{", code):
        return replaced(code, "a cell", _marked).rstrip("\n"), ""
    # The whole dictionary is the answer, because nbgrader's stub is a statement.
    stub, solution = (text.rstrip("\n").split("\n") for text in split(code, "a cell"))
    rest = len(solution) - (ast.parse("\n".join(solution)).body[0].end_lineno or 0)
    shown = [f"# {ASKED.sub('', line)}" for line in stub[: len(stub) - rest]]
    answer = solution[: len(solution) - rest]
    check = solution[len(solution) - rest :]
    return "\n".join([*shown, BEGIN, *answer, END]), "\n".join(check)


def _marked(block: SolutionBlock) -> str:
    """One of our blocks with nbgrader's marks, below the lines of its stub, which are comments."""
    return f"{ASKED.sub('', block.stub)}{block.indent}{BEGIN}\n{block.solution}{block.indent}{END}\n"
