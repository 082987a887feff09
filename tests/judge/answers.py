"""Answers to exercises as a learner's notebook would define them: the solutions, taken from the notebook
sources themselves, and wrong ones made from them.
"""

import ast
import functools
import itertools
import linecache

from workshop_lib.maintain import generate

_number = itertools.count(1)


@functools.cache
def code_cells(notebook: str) -> tuple[list[str], list[str]]:
    """The code cells of a notebook's learner's and solution version."""
    import jupytext

    path = generate.NOTEBOOKS / "source" / f"{notebook}.py"
    texts = generate.split(path.read_text(encoding="utf-8"), path.name)
    versions = [jupytext.reads(text, fmt="py:percent").cells for text in texts]
    return tuple([cell.source for cell in cells if cell.cell_type == "code"] for cells in versions)


def _source(notebook: str, name: str, solved: bool) -> str:
    """The imports of a notebook, and its cell that defines the function or class `name`; not those of cell magics."""
    cells = [cell for cell in code_cells(notebook)[solved] if not cell.startswith("%")]
    wanted = (ast.Import, ast.ImportFrom)
    imports = [ast.unparse(node) for cell in cells for node in ast.parse(cell).body if isinstance(node, wanted)]
    defining = [
        cell
        for cell in cells
        if any(isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name for n in ast.parse(cell).body)
    ]
    assert len(defining) == 1, f"{notebook} defines {name} in {len(defining)} cells"
    return "\n".join([*imports, defining[0]])


def from_source(text: str, name: str):
    """The function or class `name` that this source defines, as if a notebook had defined it."""
    file = f"learner_{next(_number)}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def written(imports: str, head: str, *lines: str):
    """A function with this head and these lines, and the imports before it."""
    body = "\n    ".join(lines)
    return from_source(f"{imports}\ndef {head}:\n    {body}\n", head.split("(")[0])


def solution(notebook: str, name: str):
    return from_source(_source(notebook, name, solved=True), name)


def stub(notebook: str, name: str):
    return from_source(_source(notebook, name, solved=False), name)


def variant(notebook: str, name: str, *replacements: tuple[str, str]):
    """The solution with texts in it replaced, each of which must be there."""
    text = _source(notebook, name, solved=True)
    for old, new in replacements:
        assert old in text, f"the solution of {name} has no {old!r}"
        text = text.replace(old, new)
    return from_source(text, name)
