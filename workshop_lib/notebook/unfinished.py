"""A line below a cell that fails because an earlier cell has not run to its end: which cell to run again."""

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from .magics import FIRST_LINE


class Variable(NamedTuple):
    """A variable of the notebook, or of the ranks."""

    name: str
    on_ranks: bool


class Unfinished:
    """Remembers which variables depend on a cell that failed, and names that cell below cells that fail later.

    A cell that was interrupted may have left an empty dictionary, and the next cell's KeyError says nothing about it.
    """

    def __init__(self, shell: Any):
        self.shell = shell
        self.failed: dict[Variable, int] = {}  # the number of the failed cell that a variable depends on
        shell.events.register("post_run_cell", self.look)

    def look(self, result: Any) -> None:
        """Called after each cell, when its error has been shown."""
        source = result.info.raw_cell
        on_ranks = FIRST_LINE.match(source) is not None
        try:
            tree = ast.parse(self.shell.transform_cell(FIRST_LINE.sub("", source)))
        except (SyntaxError, ValueError):
            return
        names = list(_names(tree))
        made = {Variable(node.id, on_ranks) for node in names if isinstance(node.ctx, ast.Store)}
        used = {Variable(node.id, on_ranks) for node in names} - made
        used |= {Variable(name, on_ranks=True) for name in _pulled(tree)}
        suspects = used & set(self.failed)
        missing = {variable for variable in suspects if f"'{variable.name}'" in str(result.error_in_exec)}
        causes = {self.failed[variable]: variable.name for variable in missing or suspects}
        first = min(causes, default=None)
        if not result.success and first is not None:
            print(f"`{causes[first]}` may be incomplete, because cell [{first}] has not run to its end. Run it again.")
        if not result.success and first is None:
            first = result.execution_count
        self.failed = {variable: number for variable, number in self.failed.items() if variable not in made}
        if first is not None:
            self.failed |= dict.fromkeys(made, first)


def _names(tree: ast.AST) -> Iterator[ast.Name]:
    """The variables of a cell, without those of functions and classes that it defines."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Name):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _names(node)


def _pulled(tree: ast.AST) -> Iterator[str]:
    """The variables of the ranks that a cell copies with `team.pull`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pull":
            yield from (str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))
