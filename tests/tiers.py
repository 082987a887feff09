"""Which tests `make test` runs, which `make test-full` adds, and which belong to one lesson.

`make test` is for what everyone depends on: the tier "core". `make test-full` runs every other promise once: the tier
"full". `make test-all` runs everything, the tier "exhaustive" too. A test is in the tier whose mark it has; without a
mark, it is core, unless it stands in FULL_FOLDERS or is about lessons outside CORE_LESSONS.
"""

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

from workshop_lib.course import exercises
from workshop_lib.maintain import generate
from workshop_lib.paths import ROOT

TIERS = ("core", "full", "exhaustive")
FULL_FOLDERS = ("browser", "slurm", "submissions")
CORE_LESSONS = tuple(name.partition("_")[0] for name in exercises.tracks() if exercises.is_on_core_path(name))
STEMS = {source.stem for source in generate.sources()}
LESSONS = [source.stem.partition("_")[0] for source in generate.sources()]
CORE_FOLDERS = (
    "machine",
    "course",
    "collectives",
    "data",
    "models",
    "emulation",
    "training",
    "ranks",
    "results",
    "notebook",
    "judge",
    "cli",
)
ROOMS = {source.stem.partition("_")[2]: source.stem.partition("_")[0] for source in generate.sources()}
# A module of these parts is a lesson's own where no more than two notebooks import it.
OF_LESSONS = re.compile(r"workshop_lib\.lessons\.\w+\.\w+$")
SHARED_BY = 2
MAGIC = re.compile(r"^(\s*)[%!].*", re.MULTILINE)


def lesson_of(stem: str) -> str:
    """The lesson of the notebook with this name: 06 of 06_zero_and_fsdp."""
    return stem.partition("_")[0]


@functools.cache
def imported(path: Path) -> set[str]:
    """The modules of lessons that a notebook's source or a file of tests imports."""
    code = MAGIC.sub(r"\1pass", path.read_text())
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if OF_LESSONS.match(name)}


@functools.cache
def lessons_of_modules() -> dict[str, set[str]]:
    """The lessons whose notebooks import a module, by module."""
    found: dict[str, set[str]] = defaultdict(set)
    for source in generate.sources():
        for module in imported(source):
            found[module].add(lesson_of(source.stem))
    return {module: lessons for module, lessons in found.items() if len(lessons) <= SHARED_BY}


@functools.cache
def lessons_of_file(path: Path) -> set[str]:
    """The lessons with whose own modules a file of tests works."""
    folders = path.relative_to(ROOT / "tests").parts
    if folders[0] in CORE_FOLDERS:
        return set()
    if folders[0] == "lessons" and folders[1] in ROOMS:
        return {ROOMS[folders[1]]}
    modules = lessons_of_modules()
    return {lesson for module in imported(path) if module in modules for lesson in modules[module]}


def lessons_of(item: pytest.Item) -> set[str]:
    """The lessons that a test is about; none, if it's about what many lessons share.

    A test says so itself, by the notebook in its parameters or of its class or by the mark `lesson`; or it follows
    from what its file imports.
    """
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    stems = {value for value in parameters if isinstance(value, str) and value in STEMS}
    stems = stems or {getattr(item.cls, "notebook", None)} & STEMS
    if stems:
        return {lesson_of(stem) for stem in stems}
    mark = item.get_closest_marker("lesson")
    return set(mark.args) if mark else lessons_of_file(item.path)


def tier_of(item: pytest.Item) -> str:
    """The tier of a test, one of TIERS. The mark `core` on a test takes it out of a file that is marked `full`."""
    for tier in ("exhaustive", "core", "full"):
        if item.get_closest_marker(tier):
            return tier
    folder = item.path.relative_to(ROOT / "tests").parts[0]
    lessons = lessons_of(item)
    is_full = folder in FULL_FOLDERS or (lessons and not lessons & set(CORE_LESSONS))
    return "full" if is_full else "core"
