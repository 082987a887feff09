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
        """The source, after those of the notebook's imports that it uses.

        Raises ValueError if a text to replace is not there, or if the notebook does not define `name` exactly once.
        """
        body = ast.parse(_solved(self.notebook)).body
        found = [each for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == self.name]
        if len(found) != 1:
            raise ValueError(f"{self.notebook} defines {self.name} {len(found)} times, not once")
        text = ast.get_source_segment(_solved(self.notebook), found[0]) or ""
        for old, new in self.replacements:
            if old not in text:
                raise ValueError(f"the solution of {self.name} in {self.notebook} has no {old!r}")
            text = text.replace(old, new)
        used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        return "\n".join([*_imports(body, used), text])

    def load(self) -> Callable:
        """The function or class itself."""
        return _loaded(self)


@functools.cache
def _loaded(solution: Solution) -> Callable:
    names: dict = {"__name__": "__main__"}
    exec(compile(solution.text(), f"solution of {solution.name}", "exec"), names)
    return names[solution.name]


def _imports(body: list[ast.stmt], used: set[str]) -> list[str]:
    """The imports of the names that are used; others may need what a rank should not import, such as Matplotlib."""
    imports = []
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            statement.names = [alias for alias in statement.names if _bound(alias) in used]
            if statement.names:
                imports.append(ast.unparse(statement))
    return list(dict.fromkeys(imports))


def _bound(alias: ast.alias) -> str:
    """The name that an import gives a module or an object."""
    return alias.asname or alias.name.partition(".")[0]


@functools.cache
def _solved(notebook: str) -> str:
    return without_stubs((ROOT / "notebooks" / "source" / f"{notebook}.py").read_text(encoding="utf-8"))


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
