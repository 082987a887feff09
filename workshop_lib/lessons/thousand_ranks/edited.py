"""Put a function of the learner's in the place of a function of mesh.py: 12_thousand_ranks runs the result dry."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path

from workshop_lib.course.solutions import Solution
from workshop_lib.judge import own_or_library
from workshop_lib.paths import BUILD, SCRIPTS, replacing

NOTEBOOK = "12_thousand_ranks"
SCRIPT = SCRIPTS / "mesh.py"
FOLDER = BUILD / NOTEBOOK


def one_unit() -> Path:
    """A copy of mesh.py that calls `fully_shard` for the whole model only."""
    text = SCRIPT.read_text(encoding="utf-8")
    return _written("one_unit.py", text.replace("for unit in (*blocks, model):", "for unit in (model,):"))


def source_of(build: Callable) -> str:
    """The text of the learner's function after the imports that it needs; the solution's while it's a stub."""
    if own_or_library(build, None) is None:
        return Solution(NOTEBOOK, build.__name__).text()
    code = textwrap.dedent(inspect.getsource(build))
    nodes = list(ast.walk(ast.parse(code)))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    values = {name: build.__globals__[name] for name in sorted(used - own) if name in build.__globals__}
    return "".join(_import(name, value) for name, value in values.items()) + code


def _import(name: str, value) -> str:
    """The line that imports a value of the notebook, or its definition if the notebook defines it."""
    if inspect.ismodule(value):
        return f"import {value.__name__} as {name}\n"
    if isinstance(value, int | float | str):
        return f"{name} = {value!r}\n"
    if not hasattr(value, "__module__") or not hasattr(value, "__name__"):
        return ""
    if value.__module__ == "__main__":
        return textwrap.dedent(inspect.getsource(value)) + "\n\n"
    return f"from {value.__module__} import {value.__name__} as {name}\n"


def with_source(source: str) -> Path:
    """A copy of mesh.py in which `source`, the text of a function `build` and of its imports, replaces `build`."""
    text = SCRIPT.read_text(encoding="utf-8")
    [node] = [each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef) and each.name == "build"]
    lines = text.splitlines(keepends=True)
    before = "".join(lines[: node.lineno - 1])
    after = "".join(lines[node.end_lineno :])
    return _written("mesh.py", f"{before}{source.rstrip()}\n{after}")


def _written(name: str, text: str) -> Path:
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / name
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
