"""Lint, format, types, and which part of the library may import which."""

import ast
import functools
import graphlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workshop_lib.exercises.sources import split
from workshop_lib.paths import ROOT

LIBRARY = ROOT / "workshop_lib"
OF_LESSONS = ROOT / "notebooks" / "lessons"
TOOLS = ROOT / "tools"
# What stands beside the rooms: any file may import it.
ALWAYS = {"paths", "errors", "quantities", "words", "learner", "__version__"}
MACHINE = ALWAYS | {"machine"}
TRAINING = MACHINE | {"training"}
RANKS = MACHINE | {"ranks"}
EXERCISES = TRAINING | RANKS | {"exercises"}
NOTEBOOK = EXERCISES | {"notebook"}
COMMANDS = NOTEBOOK | {"arguments", "findings"}
# `ranks` gives its errors to code on a rank, too: that importing it loads nothing else is test_rank_imports'.
MAY_IMPORT = {
    "machine": MACHINE,
    "training": TRAINING,
    "ranks": RANKS,
    "exercises": EXERCISES,
    "notebook": NOTEBOOK,
    "forecast": COMMANDS,
    "examine": COMMANDS,
    "preflight": COMMANDS | {"forecast"},
    "dryrun": COMMANDS | {"forecast"},
    "classroom": COMMANDS,
    "cli": COMMANDS | {"forecast", "examine", "preflight", "dryrun", "classroom"},
}
SOURCES = sorted((ROOT / "notebooks" / "source").glob("*.py"))
LESSONS = [path.stem.partition("_")[2] for path in SOURCES]
COLUMNS = 88  # of code in notebooks: what a narrow screen and the book show without cutting it off
ON_RANKS = [*(LIBRARY / room for room in ("machine", "training", "exercises")), OF_LESSONS]
ON_NOTEBOOKS = ("calculator.py", "live.py", "sliders.py")  # those files of lessons that show something with widgets
HEAVY = ["torch", "matplotlib", "pandas", "numpy", "mpi4py", "ipyparallel", "tensorflow"]
NOTEBOOK_ONLY = ("ipywidgets", "IPython", "ipyparallel")
MODULES = sorted(path for folder in (LIBRARY, OF_LESSONS, TOOLS) for path in folder.rglob("*.py"))
CELL = re.compile(r"^# %%(?= |$)(?! *%)", re.MULTILINE)


def below(path: Path) -> Path:
    """The path of a module as its name has it: lessons are found in notebooks/."""
    return path.relative_to(OF_LESSONS.parent if path.is_relative_to(OF_LESSONS) else ROOT)


def imported(path: Path) -> set[str]:
    """Full names of what a module imports, anywhere in it, relative imports resolved."""
    package = below(ROOT / path).parent.parts
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


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_arrows_between_the_parts_run_one_way(part):
    for path in (LIBRARY / part).rglob("*.py"):
        wrong = parts_of_the_library(path) - MAY_IMPORT[part] - {part}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}; {part} must not know them"


def test_each_room_has_its_arrows():
    assert {path.parent.name for path in LIBRARY.glob("*/__init__.py")} == set(MAY_IMPORT)


def test_the_library_imports_no_lesson_and_no_tool():
    for path in LIBRARY.rglob("*.py"):
        wrong = {name for name in imported(path) if name.split(".")[0] in ("lessons", "tools")}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}; the library must not know them"


def test_no_lesson_imports_a_tool():
    for path in OF_LESSONS.rglob("*.py"):
        wrong = {name for name in imported(path) if name.split(".")[0] == "tools"}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_every_notebook_has_a_room():
    rooms = {path.name for path in OF_LESSONS.iterdir() if (path / "__init__.py").is_file()}
    assert rooms == set(LESSONS)


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_imports_no_later_one(lesson):
    later = set(LESSONS[LESSONS.index(lesson) + 1 :])
    for path in (OF_LESSONS / lesson).rglob("*.py"):
        names = [name.split(".") for name in imported(path) | set(places(path).values())]
        wrong = later & {name[1] for name in names if name[0] == "lessons"}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}, which come after {lesson}"


def test_no_two_classes_share_a_name():
    defined: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                defined.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    shared = {name: places for name, places in defined.items() if len(places) > 1}
    assert not shared, f"these names say too little: {shared}"


def name_of(path: Path) -> str:
    """The module in this file, as imports name it."""
    parts = below(path).with_suffix("").parts
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
    command_line = imports_of_each(MODULES)["workshop_lib.cli.train"]
    assert "workshop_lib.notebook.results.curves" in command_line, "imported inside a function"
    assert "workshop_lib.ranks" in command_line, "a package's own file"


@pytest.mark.parametrize("folder", ON_RANKS, ids=lambda folder: folder.name)
def test_code_on_ranks_knows_no_notebook(folder):
    for path in folder.rglob("*.py"):
        wrong = {name for name in imported(path) if name.split(".")[0] in NOTEBOOK_ONLY}
        wrong = {name for name in wrong if not name.startswith("ipyparallel.engine.")}
        assert not wrong or path.name in ON_NOTEBOOKS, f"{path.relative_to(ROOT)} imports {wrong}"


def places(path: Path) -> dict[str, str]:
    """The names that the face in a package's file gives, each with its "module" or "module:name"; else empty."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    given = [word for call in calls if ast.unparse(call.func) == "face" for word in call.keywords]
    package = name_of(path)
    return {
        word.arg: importlib.util.resolve_name(word.value.value, package)
        for word in given
        if word.arg and isinstance(word.value, ast.Constant)
    }


@functools.cache
def names_in(module: str) -> set[str]:
    """What a module of ours has at its top level, and a package's files."""
    path = BY_NAME[module]
    names = {each.stem for each in path.parent.iterdir()} if path.name == "__init__.py" else set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif ast.unparse(node).startswith("__all__ = "):
            names |= set(ast.literal_eval(node.value))
        else:
            names |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names


BY_NAME = {name_of(path): path for path in MODULES}
FACE = places(LIBRARY / "__init__.py")


def test_what_a_face_names_is_there():
    for path in (LIBRARY / "__init__.py", *(OF_LESSONS / lesson / "__init__.py" for lesson in LESSONS)):
        for name, place in places(path).items():
            module, _, attribute = place.partition(":")
            assert not attribute or attribute in names_in(module), f"{path.relative_to(ROOT)}: {name}={place}"
            # Once a file of the package is imported, Python gives the package an attribute of its name.
            file = path.parent / f"{name}.py"
            assert name_of(file) == place or not file.exists(), f"{path.relative_to(ROOT)}: {name} is a file, too"


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_notebook_knows_the_faces_of_the_library_and_of_its_lesson_alone(source):
    lesson = source.stem.partition("_")[2]
    own = places(OF_LESSONS / lesson / "__init__.py")
    used = set()
    for text in split(source.read_text(encoding="utf-8"), source.name):
        first_cell = next(cell for cell in CELL.split(text)[1:] if not cell.startswith(" [markdown]"))
        assert len(re.findall("^from (?:workshop_lib|lessons) import", first_cell, re.MULTILINE)) <= 3
        for node in ast.walk(ast.parse(text)):
            line = ast.unparse(node) if isinstance(node, ast.Import | ast.ImportFrom) else ""
            if line.startswith("from workshop_lib import "):
                assert {alias.name for alias in node.names} <= set(FACE), line
            elif re.match("(?:from|import) (?:workshop_lib|lessons|tools)", line):
                assert line == f"from lessons import {lesson} as lesson"
            chain = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            first, *rest = chain.split(".") if re.fullmatch(r"[\w.]+", chain) else [""]
            if first == "lesson":
                assert rest[0] in own, f"the face of {lesson} has no {rest[0]}"
                used.add(rest[0])
            if place := FACE.get(first) or (own[rest.pop(0)] if first == "lesson" else ""):
                assert ":" in place or not rest or rest[0] in names_in(place), f"{place} has no {rest[0]}"
    assert used == set(own), f"{source.name} doesn't use {set(own) - used}"


def test_code_in_notebooks_is_narrow():
    wide = []
    for source in SOURCES:
        code = [cell for cell in CELL.split(source.read_text(encoding="utf-8")) if not cell.startswith(" [markdown]")]
        wide += [f"{source.name}: {line}" for cell in code for line in cell.splitlines() if len(line) > COLUMNS]
    assert not wide, "\n".join(wide)


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
        ["ruff", "check", "workshop_lib", "tools", "tests", "book", "notebooks/lessons", "notebooks/source"],
        ["ruff", "format", "--check", "workshop_lib", "tools", "tests", "book", "notebooks/lessons"],
        ["mypy"],
    ],
    ids=["lint", "format", "types"],
)
def test_nothing_is_found_by(command):
    ran = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
