"""Write the notebooks from their sources.

    python -m workshop_lib.notebook.generate            write notebooks/ and notebooks/solutions/
    python -m workshop_lib.notebook.generate --check    fail if they differ from notebooks/source/

A source (jupytext py:percent) holds the solutions between markers, each alone on its line:

    # <solution>
    gradient /= world_size
    # <stub>
    # gradient = ...  # divide by what?
    # </stub>
    # </solution>

The learner's notebook gets the lines of the stub without their "# " (or `...  # your code here` if
there is no stub); the solution notebook gets the rest. A stub may also follow its solution directly.
"""

import argparse
import hashlib
import os
import re
import sys
from collections import Counter
from pathlib import Path

import jupytext
import nbformat

from workshop_lib import paths
from workshop_lib.errors import InputError, WorkshopError

NOTEBOOKS = paths.ROOT / "notebooks"
NAMED = re.compile(r"\d\d[a-z]?_\w+")
MARKER = re.compile(r"^(\s*)#\s*<(/?)(solution|stub)>\s*$")
CELL = re.compile(r"^# %%(\s|$)")
# What JupyterLab writes, so that a notebook which was only opened doesn't count as changed; the version of Python,
# which differs from machine to machine, is left out by the kernel.json in this folder's jupyter/.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}


class SourceError(InputError):
    """A notebook source that cannot be used; the message says in which file and line, and why."""


def sources(folder: Path = NOTEBOOKS) -> list[Path]:
    """The sources under `folder`, in the order of their numbers."""
    return sorted(p for p in (folder / "source").glob("*.py") if NAMED.fullmatch(p.stem))


def split(text: str, name: str) -> tuple[str, str]:
    """The learner's and the solution's text of a source. Raises SourceError naming `name`:line."""
    # The learner's text in pieces: a plain line, or the stub of a solution with its indentation.
    learner: list[tuple[str, list[str]]] = []
    solution: list[str] = []
    open_tags: dict[str, int] = {}  # the line of each
    a_stub_may_follow = False
    for number, line in enumerate(text.splitlines(), 1):
        marker, inner = MARKER.match(line), next(reversed(open_tags), None)
        if marker is None:
            if inner and CELL.match(line):
                break
            if inner == "stub":
                learner[-1][1].append(_uncomment(line, name, number))
            else:
                solution.append(line)
            if not inner:
                learner.append((line, [line]))
                a_stub_may_follow = False
            continue
        indent, closes, tag = marker.groups()
        if closes and inner == tag:
            del open_tags[tag]
            a_stub_may_follow = tag == "solution"
        elif inner and (tag == "solution" or (inner == "stub" and not closes)):
            break
        elif closes and inner:
            raise SourceError(f"{name}:{number}: '# </{tag}>' closes nothing.")
        elif closes or (tag == "stub" and not (inner or a_stub_may_follow)):
            raise SourceError(
                f"{name}:{number}: '# <{closes}{tag}>' without '# <{tag if closes else 'solution'}>' before it."
            )
        else:
            if tag == "solution":
                learner.append((indent, []))
            open_tags[tag] = number
    for tag, number in reversed(open_tags.items()):
        raise SourceError(f"{name}:{number}: '# <{tag}>' is not closed by '# </{tag}>' in its cell.")
    shown = [line for indent, lines in learner for line in lines or [f"{indent}...  # your code here"]]
    return "\n".join(shown) + "\n", "\n".join(solution) + "\n"


def _uncomment(line: str, name: str, number: int) -> str:
    comment = re.match(r"^(\s*)#\s?(.*)$", line)
    if line.strip() and not comment:
        raise SourceError(f"{name}:{number}: a line of a stub starts with '# ', found {line.strip()!r}.")
    return comment[1] + comment[2] if comment else ""


def notebook_json(text: str) -> str:
    """The py:percent `text` as a notebook file: no outputs, the same bytes for the same text.

    A cell's id comes from its content, so editing one cell leaves the ids of the others alone.
    """
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        content = f"{cell.cell_type}:{cell.source}"
        seen[content] += 1
        cell.id = hashlib.sha256(f"{seen[content]}:{content}".encode()).hexdigest()[:8]
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4) + "\n"


def render(folder: Path = NOTEBOOKS) -> dict[Path, str]:
    """What every generated notebook under `folder` should hold, from the sources there."""
    files = {}
    for source in sources(folder):
        learner, solution = split(source.read_text(encoding="utf-8"), str(source))
        files[folder / f"{source.stem}.ipynb"] = notebook_json(learner)
        files[folder / "solutions" / f"{source.stem}.ipynb"] = notebook_json(solution)
    return files


def write(folder: Path = NOTEBOOKS) -> list[Path]:
    """Write every notebook that differs from its source; returns those written."""
    changed = {path: text for path, text in render(folder).items() if not _holds(path, text)}
    for path, text in changed.items():
        with paths.replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return list(changed)


def drifted(folder: Path = NOTEBOOKS) -> list[Path]:
    """Generated notebooks that differ from their source, are missing, or have no source any more."""
    files = render(folder)
    there = [*folder.glob("*.ipynb"), *(folder / "solutions").glob("*.ipynb")]
    orphans = [path for path in there if NAMED.fullmatch(path.stem) and path not in files]
    return [path for path, text in files.items() if not _holds(path, text)] + sorted(orphans)


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def main(arguments: list[str] | None = None, folder: Path = NOTEBOOKS) -> int:
    """The command above; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m workshop_lib.notebook.generate")
    parser.add_argument("--check", action="store_true", help="fail if notebooks differ from sources")
    options = parser.parse_args(arguments)
    try:
        if not options.check:
            for path in write(folder):
                print(f"wrote {os.path.relpath(path)}")
        elif differing := drifted(folder):
            for path in differing:
                print(f"{os.path.relpath(path)} differs from its source", file=sys.stderr)
            raise SourceError("Edit the source in notebooks/source/, then run `make notebooks`.")
    except WorkshopError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
