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

from workshop_lib import paths

NOTEBOOKS = paths.ROOT / "notebooks"
NAMED = re.compile(r"\d\d[a-z]?_\w+")
MARKER = re.compile(r"^(\s*)#\s*<(/?)(solution|stub)>\s*$")
CELL = re.compile(r"^# %%(\s|$)")
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class SourceError(ValueError):
    """A notebook source that cannot be used; the message says in which file and line, and why."""


def sources(folder: Path = NOTEBOOKS) -> list[Path]:
    """The sources under `folder`, in the order of their numbers."""
    return sorted(p for p in (folder / "source").glob("*.py") if NAMED.fullmatch(p.stem))


def split(text: str, name: str) -> tuple[str, str]:
    """The learner's and the solution's text of a source. Raises SourceError naming `name`:line."""
    lines, learner, solution = text.splitlines(), [], []
    at = 0
    while at < len(lines):
        found = MARKER.match(lines[at])
        if not found:
            learner.append(lines[at])
            solution.append(lines[at])
            at += 1
            continue
        if found[2] or found[3] == "stub":
            raise SourceError(f"{name}:{at + 1}: {lines[at].strip()!r} without '# <solution>' before it.")
        end = _closing(lines, at, name)
        code, stub = _take_stub(lines[at + 1 : end], name, at + 1)
        if end + 1 < len(lines) and _is_opening(lines[end + 1], "stub"):
            start, end = end + 1, _closing(lines, end + 1, name)
            stub += [_uncomment(line, name, n) for n, line in enumerate(lines[start + 1 : end], start + 2)]
        learner += stub or [f"{found[1]}...  # your code here"]
        solution += code
        at = end + 1
    return "\n".join(learner) + "\n", "\n".join(solution) + "\n"


def _is_opening(line: str, tag: str) -> bool:
    found = MARKER.match(line)
    return bool(found and not found[2] and found[3] == tag)


def _closing(lines: list[str], start: int, name: str) -> int:
    """Index of the line that closes the marker on line `start`, in the same cell."""
    tag = MARKER.match(lines[start])[3]
    for at in range(start + 1, len(lines)):
        found = MARKER.match(lines[at])
        if found and found[2] and found[3] == tag:
            return at
        if CELL.match(lines[at]) or _is_opening(lines[at], tag):
            break
    raise SourceError(f"{name}:{start + 1}: '# <{tag}>' is not closed by '# </{tag}>' in its cell.")


def _take_stub(lines: list[str], name: str, offset: int) -> tuple[list[str], list[str]]:
    """The code and the stub in a solution; `offset` is the number of lines before it in the file."""
    code, stub, at = [], [], 0
    while at < len(lines):
        found = MARKER.match(lines[at])
        if found and found[2]:
            raise SourceError(f"{name}:{offset + at + 1}: '# </{found[3]}>' closes nothing.")
        if not found:
            code.append(lines[at])
            at += 1
            continue
        try:
            end = _closing(lines, at, name)
        except SourceError:
            raise SourceError(
                f"{name}:{offset + at + 1}: '# <stub>' is not closed by '# </stub>' in its solution."
            ) from None
        stub += [_uncomment(lines[n], name, offset + n + 1) for n in range(at + 1, end)]
        at = end + 1
    return code, stub


def _uncomment(line: str, name: str, number: int) -> str:
    found = re.match(r"^(\s*)#\s?(.*)$", line)
    if line.strip() and not found:
        raise SourceError(f"{name}:{number}: a line of a stub starts with '# ', found {line.strip()!r}.")
    return found[1] + found[2] if found else ""


def notebook_json(text: str) -> str:
    """The py:percent `text` as a notebook file: no outputs, the same bytes for the same text.

    A cell's id comes from its content, so editing one cell leaves the ids of the others alone.
    """
    import jupytext
    import nbformat

    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen = Counter()
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
        if options.check:
            return _check(folder)
        for path in write(folder):
            print(f"wrote {os.path.relpath(path)}")
        return 0
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1


def _check(folder: Path) -> int:
    differing = drifted(folder)
    for path in differing:
        print(f"{os.path.relpath(path)} differs from its source", file=sys.stderr)
    if differing:
        print("Edit the source in notebooks/source/, then run `make notebooks`.", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
