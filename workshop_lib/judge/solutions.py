"""The notebooks' own solutions, read from notebooks/source/, and known mistakes made by editing them."""

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass

from workshop_lib.paths import ROOT

Replacement = tuple[str, str]  # (a text of the solution, what a known mistake has in its place)


@dataclass(frozen=True)
class Solution:
    """The function or class `name` of a notebook, with texts in it replaced.

    It is found by its name wherever it is needed, so it travels to the ranks as a few words.
    """

    notebook: str
    name: str
    replacements: tuple[Replacement, ...] = ()

    def text(self) -> str:
        """The source, after the imports that it needs. Raises ValueError if a text to replace is not there."""
        text = solution_text(self.notebook, self.name)
        for old, new in self.replacements:
            if old not in text:
                raise ValueError(f"the solution of {self.name} in {self.notebook} has no {old!r}")
            text = text.replace(old, new)
        return text

    def load(self) -> Callable:
        """The function or class itself."""
        return _loaded(self)


@functools.cache
def _loaded(solution: Solution) -> Callable:
    names: dict = {"__name__": "__main__"}
    exec(compile(solution.text(), f"solution of {solution.name}", "exec"), names)
    return names[solution.name]


@functools.cache
def solution_text(notebook: str, name: str) -> str:
    """The source of the solution of `name`, after those of the notebook's imports that it uses.

    Raises ValueError if the notebook does not define `name` exactly once.
    """
    text = without_stubs((ROOT / "notebooks" / "source" / f"{notebook}.py").read_text(encoding="utf-8"))
    body = ast.parse(text).body
    found = [each for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == name]
    if len(found) != 1:
        raise ValueError(f"{notebook} defines {name} {len(found)} times, not once")
    used = {node.id for node in ast.walk(found[0]) if isinstance(node, ast.Name)}
    imports = []
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            bound = {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
            if bound & used:
                imports.append(ast.unparse(statement))
    source = ast.get_source_segment(text, found[0]) or ""
    decorators = [f"@{ast.unparse(decorator)}" for decorator in found[0].decorator_list]
    return "\n".join([*imports, *decorators, source])


def without_stubs(text: str) -> str:
    """A notebook's source with the solutions, without the stubs and without the markers around them."""
    lines = []
    in_stub = False
    for line in text.splitlines():
        marker = line.strip()
        if marker == "# <stub>":
            in_stub = True
        elif marker == "# </stub>":
            in_stub = False
        elif not in_stub and marker not in ("# <solution>", "# </solution>"):
            lines.append(line)
    return "\n".join(lines) + "\n"
