"""How a notebook's source holds solutions: between markers, as classroom/generate.py describes."""

import re
from collections.abc import Callable
from typing import NamedTuple

from workshop_lib.errors import InputError

MARKER = r" *# *</?(?:solution|stub)> *"
CODE_LINE = rf"(?!{MARKER}$|# %%(?:\s|$)).*\n"  # a line within a cell
STUB_LINE = rf"(?!{MARKER}$) *(?:#.*)?\n"
BLOCK = re.compile(
    rf"^( *)# *<solution> *\n((?:{CODE_LINE})*)"
    rf"(?: *# *<stub> *\n((?:{STUB_LINE})*) *# *</stub> *\n)?"
    r"\s*# *</solution> *(?:\n|\Z)",
    re.MULTILINE,
)
INCOMPLETE = (
    "this marker doesn't belong to a complete block. In one cell, write '# <solution>', the lines and '# </solution>'. "
    "A stub goes last inside: '# <stub>', lines that start with '# ', '# </stub>'."
)
YOURS = "your code here"  # part of every cell that a learner is asked to write


class SourceError(InputError):
    """A notebook source that cannot be used; the message says in which file and line, and why."""


class SolutionBlock(NamedTuple):
    """A solution, and the stub that a learner gets in its place: their lines, and the indentation of the markers."""

    indent: str
    solution: str
    stub: str

    def for_learner(self) -> str:
        """The stub's lines without their "# "."""
        lines = re.sub("^( *)# ?", r"\1", self.stub, flags=re.MULTILINE)
        return lines or f"{self.indent}...  # {YOURS}\n"


def replaced(text: str, name: str, by: Callable[[SolutionBlock], str]) -> str:
    """A source with each marked solution replaced. A SourceError names `name`:line of a marker outside of any."""
    outside = BLOCK.sub(lambda found: "\n" * found[0].count("\n"), text)
    if marker := re.search(f"^{MARKER}$", outside, re.MULTILINE):
        number = 1 + outside.count("\n", 0, marker.start())
        raise SourceError(f"{name}:{number}: {marker[0].strip()!r}: {INCOMPLETE}")
    return BLOCK.sub(lambda found: by(SolutionBlock(found[1], found[2], found[3] or "")), text)


def split(text: str, name: str) -> tuple[str, str]:
    """The text of the learner's notebook and of the solution, from a source. Raises SourceError naming `name`:line."""
    return replaced(text, name, SolutionBlock.for_learner), replaced(text, name, lambda block: block.solution)
