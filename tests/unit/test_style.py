"""Lint, format, types, and which part of the library may import which."""

import ast
import graphlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workshop_lib.paths import ROOT

LIBRARY = ROOT / "workshop_lib"
ALWAYS = {"paths", "errors", "environment", "installation", "learner", "shadowing", "__version__"}
DATA, MODELS, COMM = ALWAYS | {"data"}, ALWAYS | {"data", "models"}, ALWAYS | {"data", "comm"}
TRAINING = ALWAYS | {"data", "models", "comm", "training"}
# `ranks` gives its errors to code on a rank, too: that importing it loads nothing else is test_rank_imports'.
MAY_IMPORT = {
    "data": DATA,
    "models": MODELS,
    "comm": COMM,
    "training": TRAINING,
    "exercises": TRAINING | {"scaling", "ranks", "exercises"},
    "ranks": TRAINING | {"ranks"},
    "scaling": TRAINING | {"scaling"},
    "notebook": TRAINING | {"ranks", "scaling", "exercises", "notebook"},
    "cli": TRAINING | {"ranks", "scaling", "exercises", "notebook", "cli"},
}
ON_RANKS = ["data", "models", "comm", "training", "exercises"]
HEAVY = ["torch", "matplotlib", "pandas", "numpy", "mpi4py", "ipyparallel", "tensorflow"]
NOTEBOOK_ONLY = ("ipywidgets", "IPython", "ipyparallel")
MODULES = sorted(LIBRARY.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Full names of what a module imports, anywhere in it, relative imports resolved."""
    package = (ROOT / path).relative_to(ROOT).parent.parts
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def parts_of_the_library(path: Path) -> set[str]:
    """The parts (first names under workshop_lib) that a module imports, without its own."""
    names = [name.split(".") for name in imported(path)]
    return {name[1] for name in names if name[0] == "workshop_lib" and len(name) > 1}


def test_relative_imports_are_resolved(tmp_path):
    assert "workshop_lib.scaling.records.RecordError" in imported(LIBRARY / "scaling" / "curves.py")
    relative = [path for path in MODULES if "\nfrom ." in path.read_text()]
    for path in relative:
        assert not any(name.startswith(".") for name in imported(path))


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_arrows_between_the_parts_run_one_way(part):
    for path in (LIBRARY / part).rglob("*.py"):
        wrong = parts_of_the_library(path) - MAY_IMPORT[part] - {part}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}; {part} must not know them"


def name_of(path: Path) -> str:
    """The module in this file, as imports name it."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of_each(modules: list[Path]) -> dict[str, set[str]]:
    """The files that each file imports, inside functions too. `from package import name` means the submodule
    of that name where there is one, else the package's own file."""
    known = {name_of(path) for path in modules}

    def file_of(name: str) -> str | None:
        return next((each for each in (name, name.rpartition(".")[0]) if each in known), None)

    return {name_of(path): {file_of(name) for name in imported(path)} - {None, name_of(path)} for path in modules}


def a_circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, in order; empty when there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_no_circle_of_imports_hides_in_a_function():
    assert not a_circle(imports_of_each(MODULES))


def test_a_circle_would_be_found():
    assert set(a_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    command_line = imports_of_each(MODULES)["workshop_lib.cli.commands"]
    assert "workshop_lib.scaling.curves" in command_line, "imported inside a function"
    assert "workshop_lib.ranks" in command_line, "a package's own file"


@pytest.mark.parametrize("part", ON_RANKS)
def test_code_on_ranks_knows_no_notebook(part):
    for path in (LIBRARY / part).rglob("*.py"):
        wrong = {name for name in imported(path) if name.split(".")[0] in NOTEBOOK_ONLY}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_the_engine_side_uses_no_client():
    names = imported(LIBRARY / "ranks" / "engine.py")
    wrong = {name for name in names if name.split(".")[0] in ("ipywidgets", "IPython")}
    parallel = {name for name in names if name.split(".")[0] == "ipyparallel"}
    wrong |= {name for name in parallel if not name.startswith("ipyparallel.engine.")}
    assert not wrong


def test_importing_the_library_is_quick_and_light():
    code = (
        "import time; start = time.perf_counter(); import workshop_lib, sys;"
        f"print(time.perf_counter() - start, *set({HEAVY}) & set(sys.modules))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = [
        subprocess.check_output([sys.executable, "-c", code], text=True, env=env, timeout=30).split() for _ in range(3)
    ]
    assert min(float(seconds) for seconds, *_ in shown) < 0.5
    assert all(len(words) == 1 for words in shown), f"imported too much: {shown}"


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "workshop_lib", "tests", "book", "notebooks/source"],
        ["ruff", "format", "--check", "workshop_lib", "tests", "book"],
        ["mypy"],
    ],
    ids=["lint", "format", "types"],
)
def test_nothing_is_found_by(command):
    ran = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
