"""Lint, the size of files, and which part of the library may import which."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workshop_lib.paths import ROOT

LIBRARY = ROOT / "workshop_lib"
ALWAYS = {"errors", "paths", "__version__"}
RANK_WORLD = ALWAYS | {"data", "models", "comm", "training", "probes"}
MAY_IMPORT = {
    "data": ALWAYS,
    "models": ALWAYS | {"data", "models"},
    "comm": ALWAYS | {"comm"},
    "training": RANK_WORLD - {"probes"},
    "probes": RANK_WORLD,
    "ranks": RANK_WORLD | {"ranks"},
    "scaling": RANK_WORLD | {"scaling"},
    "notebook": RANK_WORLD | {"ranks", "scaling", "notebook"},
}
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


@pytest.mark.parametrize("part", ["data", "models", "comm", "training", "probes"])
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


def test_a_module_fits_in_the_head():
    long = {str(p.relative_to(ROOT)): n for p in MODULES if (n := len(p.read_text().splitlines())) > 320}
    assert not long, f"more than 320 lines: {long}"


def test_ruff_finds_nothing():
    command = [sys.executable, "-m", "ruff", "check", "workshop_lib", "tests", "notebooks/source"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
