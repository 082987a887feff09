"""Finds the earlier cells that a notebook's cell needs: cells that define what it uses, and what they need in turn.

This analyzes the code without running it. Variables belong either to the notebook or to the ranks. Changes that a call
makes inside an object go unnoticed, so no cell should need an earlier cell just for such a change.
"""

import ast
import dis
import re
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import NamedTuple

from IPython.core.inputtransformer2 import TransformerManager

MAGIC = re.compile(r"%%(\w+)(.*)\n?")
NOTEBOOK = "notebook"
RANKS = "ranks"
FILES = "files"
TEAM = (NOTEBOOK, "team")  # every notebook gives its ranks this name
OTHER_SIDE = {NOTEBOOK: RANKS, RANKS: NOTEBOOK}  # for example, a notebook's function may use variables of the ranks


class Names(NamedTuple):
    """What a cell defines, and what it uses from other cells, as pairs (where, name)."""

    defines: set[tuple[str, str]]
    uses: set[tuple[str, str]]


def names(source: str) -> Names:
    """What a cell defines and uses."""
    where = NOTEBOOK
    magic = MAGIC.match(source)
    if magic and magic[1] == "writefile":
        folders, _, file = magic[2].strip().rpartition("/")
        return Names({(FILES, file)}, {(NOTEBOOK, name) for name in re.findall(r"{(\w+)", folders)})
    uses = {TEAM} if "ranks.current()" in source else set()
    if magic:
        source = source[magic.end() :]
        if magic[1] == "ranks":
            where = RANKS
            uses = {TEAM}
    tree = ast.parse(TransformerManager().transform_cell(source))
    defined, used = variables(compile(tree, "a cell", "exec"))
    called, strings = _in_calls(tree)
    defined |= {name for statement in tree.body for name in _changed(statement)}
    uses |= {(where, name) for name in used}
    uses |= {(RANKS, text) for text in strings}  # such as "losses" in team.pull("losses")
    uses |= {(FILES, word) for text in strings for word in re.findall(r"[\w.]+\.\w+", text)}
    return Names({(where, name) for name in defined} | called, uses)


def variables(code: CodeType) -> tuple[set[str], set[str]]:
    """The variables that some code sets, and the variables that it reads before setting them."""
    defined: set[str] = set()
    used: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_NAME", "STORE_GLOBAL"):
            defined.add(instruction.argval)
        elif instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL") and instruction.argval not in defined:
            used.add(instruction.argval)
    inner = [variables(each)[1] for each in code.co_consts if isinstance(each, CodeType)]
    return defined, used | (set().union(*inner) - defined)


def _in_calls(tree: ast.Module) -> tuple[set[tuple[str, str]], set[str]]:
    """What calls define (variables of the ranks, or a new number of ranks), and all strings, which may be names."""
    defined = set()
    strings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "push":
                defined |= {(RANKS, keyword.arg) for keyword in node.keywords if keyword.arg}
            elif node.func.attr == "restart" and node.args:
                defined.add(TEAM)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
    return defined, strings


def _changed(statement: ast.stmt) -> Iterator[str]:
    """The variables whose objects a statement like `x[0] = …` or `x.lr = …` changes."""
    for target in getattr(statement, "targets", []):
        inside = target
        while isinstance(inside, ast.Attribute | ast.Subscript):
            inside = inside.value
        if inside is not target and isinstance(inside, ast.Name):
            yield inside.id


def before(sources: list[str], wanted: Iterable[int]) -> list[int]:
    """The cells that must run before the wanted ones, as sorted indices into `sources`, which has all code cells."""
    of_cell = [names(source) for source in sources]
    wanted = set(wanted)
    needed = set(wanted)
    to_do = list(wanted)
    while to_do:
        at = to_do.pop()
        found = {_latest(of_cell[:at], where, name) for where, name in of_cell[at].uses}
        new = {each for each in found if each is not None} - needed
        needed |= new
        to_do += new
    return sorted(needed - wanted)


def _latest(earlier: list[Names], where: str, name: str) -> int | None:
    """The index of the last of these cells that defines `name`, on the side that uses it or else on the other side."""
    for place in filter(None, (where, OTHER_SIDE.get(where))):
        for index in reversed(range(len(earlier))):
            if (place, name) in earlier[index].defines:
                return index
    return None
