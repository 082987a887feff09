"""A line below a cell that fails because an earlier cell has not run to its end: which cell to run again."""

import ast
from collections.abc import Iterator
from typing import Any

from .magics import FIRST_LINE


class Unfinished:
    """Remembers which cells failed and the variables that they set, and names such a cell below cells that fail later.

    A cell that was interrupted may have left an empty dictionary, and the next cell's KeyError says nothing about it.
    """

    def __init__(self, shell: Any):
        self.shell = shell
        self.cells: dict[str, int] = {}  # the number of the failed cell that sets a variable
        shell.events.register("post_run_cell", self.look)

    def look(self, result: Any) -> None:
        try:
            tree = ast.parse(self.shell.transform_cell(FIRST_LINE.sub("", result.info.raw_cell)))
        except (SyntaxError, ValueError):
            return
        names = list(_names(tree))
        made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        if result.success:
            self.cells = {name: number for name, number in self.cells.items() if name not in made}
            return
        used = {node.id for node in names} - made | set(_pulled(tree))
        for name in sorted(used & set(self.cells)):
            number = self.cells[name]
            print(f"`{name}` may be incomplete: cell [{number}], which sets it, has not run to its end. Run it again.")
        if result.execution_count is not None:
            self.cells = dict.fromkeys(made, result.execution_count) | self.cells


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
