"""Answers to exercises as a learner's notebook would define them: the solutions, taken from the notebook
sources themselves, and wrong ones made from them.
"""

import functools
import itertools
import linecache
import textwrap

from workshop_lib.classroom import generate
from workshop_lib.exercises.solutions import definition, with_imports

_number = itertools.count(1)


@functools.cache
def code_cells(notebook: str) -> tuple[list[str], list[str]]:
    """The code cells of a notebook's learner's and solution version."""
    import jupytext

    versions = [jupytext.reads(text, fmt="py:percent").cells for text in _texts(notebook)]
    return tuple([cell.source for cell in cells if cell.cell_type == "code"] for cells in versions)


def from_source(text: str, name: str):
    """The function or class `name` that this source defines, as if a notebook had defined it."""
    file = f"learner_{next(_number)}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def written(imports: str, head: str, *lines: str):
    """A function with this head and these lines, and the imports before it."""
    body = "\n    ".join(lines)
    return from_source(f"{imports}\ndef {head}:\n    {body}\n", head.split("(")[0])


def variant(notebook: str, name: str, *replacements: tuple[str, str]):
    """The solution with texts in it replaced, each of which must be there."""
    return from_source(source(notebook, name, *replacements), name)


def source(notebook: str, name: str, *replacements: tuple[str, str]) -> str:
    return definition(_texts(notebook)[1], name, replacements)


def solution(notebook: str, name: str):
    return variant(notebook, name)


def stub(notebook: str, name: str):
    return from_source(definition(_texts(notebook)[0], name), name)


def own(notebook: str, name: str, text: str):
    """The function or class `name` that a learner wrote into the notebook in their own words."""
    return from_source(with_imports(_texts(notebook)[1], textwrap.dedent(text)), name)


@functools.cache
def _texts(notebook: str) -> tuple[str, str]:
    """The text of a notebook's learner's and solution version."""
    path = generate.NOTEBOOKS / "source" / f"{notebook}.py"
    return generate.split(path.read_text(encoding="utf-8"), path.name)
