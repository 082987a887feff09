"""How a notebook's source holds solutions: between markers, as maintain/generate.py describes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from workshop_lib.errors import InputError

MARKER = re.compile(r"( *)# *(</?(?:solution|stub)>) *")
CELL = re.compile(r"# %%(\s|$)")
# The markers that may come next in each part of a source, and the part that each of them begins.
NEXT_PARTS = {
    "text": {"<solution>": "solution"},
    "solution": {"<stub>": "stub", "</solution>": "text"},
    "stub": {"</stub>": "end of the stub"},
    "end of the stub": {"</solution>": "text"},
}
INCOMPLETE = (
    "this marker doesn't belong to a complete block. In one cell, write '# <solution>', the lines and '# </solution>'. "
    "A stub goes last inside: '# <stub>', lines that start with '# ', '# </stub>'."
)
YOURS = "your code here"  # part of every cell that a learner is asked to write


class SourceError(InputError):
    """A notebook source that cannot be used; the message says in which file and line, and why."""


@dataclass
class SolutionBlock:
    """A solution, and the stub that a learner gets in its place: their lines, and the indentation of the markers."""

    indent: str
    solution: list[str] = field(default_factory=list)
    stub: list[str] = field(default_factory=list)

    def for_learner(self) -> list[str]:
        """The stub's lines without their "# "."""
        lines = [re.sub("^( *)# ?", r"\1", line) for line in self.stub]
        return lines or [f"{self.indent}...  # {YOURS}"]


def blocks(text: str, name: str) -> Iterator[str | SolutionBlock]:
    """The lines of a source, with each marked solution as a SolutionBlock. A SourceError names `name` and the line."""
    part = "text"
    block = SolutionBlock("")
    begun = ""  # the place of the block's first marker
    for number, line in enumerate(text.split("\n"), 1):
        at = f"{name}:{number}: {line.strip()!r}"
        if marker := MARKER.fullmatch(line):
            if marker[2] not in NEXT_PARTS[part]:
                raise SourceError(f"{at}: {INCOMPLETE}")
            part = NEXT_PARTS[part][marker[2]]
            if marker[2] == "<solution>":
                block = SolutionBlock(marker[1])
                begun = at
            elif marker[2] == "</solution>":
                yield block
        elif part == "text":
            yield line
        elif CELL.match(line):
            raise SourceError(f"{begun}: {INCOMPLETE}")
        elif part == "solution":
            block.solution.append(line)
        elif line.strip() and (part == "end of the stub" or not line.lstrip().startswith("#")):
            raise SourceError(f"{at}: a stub comes last, and its lines start with '# '.")
        elif part == "stub":
            block.stub.append(line)
    if part != "text":
        raise SourceError(f"{begun}: {INCOMPLETE}")


def split(text: str, name: str) -> tuple[str, str]:
    """The text of the learner's notebook and of the solution, from a source. Raises SourceError naming `name`:line."""
    learner: list[str] = []
    solution: list[str] = []
    for each in blocks(text, name):
        learner += each.for_learner() if isinstance(each, SolutionBlock) else [each]
        solution += each.solution if isinstance(each, SolutionBlock) else [each]
    return "\n".join(learner), "\n".join(solution)
