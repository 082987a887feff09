"""Cells of an assignment for nbgrader, and what nbgrader makes of them for a student."""

import re

import nbformat

from workshop_lib.classroom import grading
from workshop_lib.maintain import generate

REGION = re.compile(rf"^( *){grading.BEGIN}\n.*?\n *{grading.END}$", re.MULTILINE | re.DOTALL)
MARKS = re.compile(rf"^ *(?:{grading.BEGIN}|{grading.END})\n?", re.MULTILINE)


def cells(stem: str) -> dict[str, nbformat.NotebookNode]:
    """The instructor's cells that have metadata of nbgrader's, by their ids."""
    text, _ = grading.assignment(generate.NOTEBOOKS / "source" / f"{stem}.py")
    notebook = nbformat.reads(text, as_version=4)
    marked = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    return {cell.metadata["nbgrader"]["grade_id"]: cell for cell in marked}


def released(answer: str) -> str:
    """An answer's cell as students get it."""
    return REGION.sub(r"\1# YOUR CODE HERE\n\1raise NotImplementedError()", answer)


def solved(answer: str) -> str:
    """An answer's cell of a student who solved it."""
    return MARKS.sub("", answer)
