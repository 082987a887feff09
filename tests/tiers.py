"""Which tests `make test` runs, which `make test-full` adds, and which belong to one lesson.

`make test` is for what everyone depends on: the tier "core". `make test-full` runs every other promise once: the tier
"full". `make test-all` runs everything, the tier "exhaustive" too. A test is in the tier whose mark it has; without a
mark, it is core, unless it stands in FULL_FOLDERS or is about lessons outside CORE_LESSONS.
"""

import pytest

from workshop_lib.classroom import generate
from workshop_lib.exercises import exercises
from workshop_lib.paths import ROOT

TIERS = ("core", "full", "exhaustive")
FULL_FOLDERS = ("browser", "slurm", "submissions")
OF_COMMANDS = {"dryrun": "12", "forecast": "08c", "preflight": "10"}  # and the notebooks that teach them
CORE_LESSONS = tuple(name.partition("_")[0] for name in exercises.tracks() if exercises.is_on_core_path(name))
STEMS = {source.stem for source in generate.sources()}
ROOMS = {stem.partition("_")[2]: stem.partition("_")[0] for stem in sorted(STEMS)}
LESSONS = list(ROOMS.values())


def lesson_of(stem: str) -> str:
    """The lesson of the notebook with this name: 06 of 06_zero_and_fsdp."""
    return stem.partition("_")[0]


def lessons_of(item: pytest.Item) -> set[str]:
    """The lessons that a test is about; none, if it's about what many lessons share.

    They're those of the notebook in its parameters, of its mark `lesson`, or of its room.
    """
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    stems = {value for value in parameters if isinstance(value, str) and value in STEMS}
    if stems:
        return {lesson_of(stem) for stem in stems}
    mark = item.get_closest_marker("lesson")
    if mark:
        return set(mark.args)
    folders = item.path.relative_to(ROOT / "tests").parts
    if folders[0] in OF_COMMANDS:
        return {OF_COMMANDS[folders[0]]}
    return {ROOMS[folders[1]]} if folders[0] == "lessons" else set()


def tier_of(item: pytest.Item) -> str:
    """The tier of a test, one of TIERS. The mark `core` on a test takes it out of a file that is marked `full`."""
    for tier in ("exhaustive", "core", "full"):
        if item.get_closest_marker(tier):
            return tier
    folder = item.path.relative_to(ROOT / "tests").parts[0]
    lessons = lessons_of(item)
    is_full = folder in FULL_FOLDERS or (lessons and not lessons & set(CORE_LESSONS))
    return "full" if is_full else "core"
