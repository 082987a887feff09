"""The notebooks' own solutions, read from notebooks/source/, and known mistakes made by editing them."""

import ast
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workshop_lib.exercises.sources import split
from workshop_lib.paths import SOURCES

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
        source = SOURCES / f"{self.notebook}.py"
        _, solved = split(source.read_text(encoding="utf-8"), source.name)
        return definition(solved, self.name, self.replacements)

    def load(self) -> Callable:
        """The function or class itself."""
        return _loaded(self)


@functools.cache
def _loaded(solution: Solution) -> Callable:
    names: dict = {"__name__": "__main__"}
    exec(compile(solution.text(), f"solution of {solution.name}", "exec"), names)
    return names[solution.name]


def definition(text: str, name: str, replacements: Sequence[Replacement] = ()) -> str:
    """The function or class `name` of a notebook's text, with texts in it replaced, after the imports that it needs.

    Raises ValueError if a text to replace is not there, or if `name` is not defined exactly once.
    """
    body = ast.parse(text).body
    found = [each for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == name]
    if len(found) != 1:
        raise ValueError(f"the notebook defines {name} {len(found)} times, not once")
    first = min([found[0].lineno, *(decorator.lineno for decorator in found[0].decorator_list)])
    code = "\n".join(text.split("\n")[first - 1 : found[0].end_lineno])
    for old, new in replacements:
        if old not in code:
            raise ValueError(f"{name} has no {old!r}")
        code = code.replace(old, new)
    return with_imports(text, code)


def with_imports(text: str, code: str) -> str:
    """The code after those imports of a notebook's text whose names it uses.

    Other imports may need what a rank should not import, such as Matplotlib.
    """
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    imports = []
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            statement.names = [each for each in statement.names if (each.asname or each.name.partition(".")[0]) in used]
            if statement.names:
                imports.append(ast.unparse(statement))
    return "\n".join([*dict.fromkeys(imports), code])  # notebooks repeat imports
