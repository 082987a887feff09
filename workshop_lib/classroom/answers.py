"""A learner's answers, taken from their notebook: a function with what it uses, a file, or a dictionary."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from workshop_lib.classroom import needs
from workshop_lib.errors import InputError
from workshop_lib.judge.sources import YOURS

MAGIC = re.compile(r"^\s*[%!].*$", re.MULTILINE)
OPEN = re.compile(r"NotImplementedError\(")  # marks a function or a program that is still a stub
DOTS = re.compile(r"(?<!\w)\.\.\.(?!\w)")  # marks a gap, in a file or an answer that also contains YOURS


def code_cells(notebook: Path) -> list[str]:
    """The sources of a notebook's code cells. Raises InputError if the file is not a notebook."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{notebook} can't be read as a notebook ({type(error).__name__}): open and save it."
        ) from None


def file(cells: list[str], name: str) -> str | None:
    """What the last cell that writes a file of this name puts into it; None if no cell does, or if gaps are left."""
    writes = re.compile(rf"%%writefile \S*\b{re.escape(name)}\n")
    written = [cell.partition("\n")[2] for cell in cells if writes.match(cell)]
    return written[-1] if written and not _has_gaps(written[-1]) else None


def answers(cells: list[str], name: str) -> str | None:
    """The source of the dictionary last assigned to this name; None if there is none, or it has gaps."""
    for text, node in reversed(list(_statements(cells))):
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            value = ast.get_source_segment(text, node.value) or ""
            return None if _has_gaps(value) else value
    return None


def _has_gaps(text: str) -> bool:
    return bool(OPEN.search(text) or (YOURS in text and DOTS.search(text)))


def function(cells: list[str], name: str) -> str | None:
    """The source of the function or class last defined under this name, preceded by everything that it uses from the
    notebook: imports, other functions and plain values. None if there is none, or if it is still a stub."""
    defined: dict[str, str] = {}  # source by name, in the order of the last definitions
    for text, node in _statements(cells):
        for each, code in _names(text, node):
            # A plain value of that name is not the answer.
            if each != name or isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.pop(each, None)
                defined[each] = code
    if name not in defined or OPEN.search(defined[name]):
        return None
    used: set[str] = set()
    new = {name}
    while new:
        used |= new
        read = (needs.variables(compile(defined[each], "an answer", "exec"))[1] for each in new)
        new = set().union(*read) & set(defined) - used
    codes = list(dict.fromkeys(code for each, code in defined.items() if each in used))
    return "\n".join(sorted(codes, key=lambda code: not code.startswith(("import ", "from ")))) + "\n"


def _statements(cells: list[str]) -> Iterator[tuple[str, ast.stmt]]:
    """Each statement with the text of its cell. Cells that begin with `%%` or cannot be parsed are left out."""
    for cell in cells:
        text = MAGIC.sub("", cell)
        try:
            statements = [] if cell.startswith("%%") else ast.parse(text).body
        except (SyntaxError, ValueError):
            continue
        for node in statements:
            yield text, node


def _names(text: str, node: ast.stmt) -> Iterator[tuple[str, str]]:
    """The names that a statement binds, each with code that binds it alone. Assignments with a call are left out."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], ast.unparse(ast.Import([alias]))
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, ast.unparse(ast.ImportFrom(node.module, [alias], node.level))
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        yield node.name, "\n".join(text.split("\n")[first - 1 : node.end_lineno])
    elif isinstance(node, ast.Assign) and not any(isinstance(each, ast.Call) for each in ast.walk(node.value)):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, ast.unparse(node)
