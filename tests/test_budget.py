"""How many lines each room of the library and of the tests may have. Budgets only fall.

A room over its budget fails here, and so does one that fell well below it, until its budget falls too. To raise one is
a commit of its own, which changes nothing else and gives the reason.
"""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from workshop_lib.paths import ROOT

BUDGETS = tomllib.loads((ROOT / "tests" / "budget.toml").read_text())
BESIDE = "beside the rooms"
# How far below its budget a room may stay, so that not every small change has to lower it.
SLACK = 0.03
SLACK_LINES = 25


def room_of(path: Path) -> str:
    """The room of a file, by its path under the folder above. Every lesson is a room."""
    folders = path.parts[:-1]
    if not folders:
        return BESIDE
    is_of_a_lesson = folders[0] == "lessons" and len(folders) > 1
    return "/".join(folders[:2]) if is_of_a_lesson else folders[0]


def lines_of_rooms(top: Path) -> dict[str, int]:
    """The lines of Python in each room under this folder."""
    lines: Counter[str] = Counter()
    for path in top.rglob("*.py"):
        lines[room_of(path.relative_to(top))] += len(path.read_text().splitlines())
    return dict(lines)


def complaints(lines: dict[str, int], budgets: dict[str, int]) -> list[str]:
    """What is wrong with the budgets of these rooms, a sentence each."""
    found = [f"{room} has no budget" for room in lines.keys() - budgets.keys()]
    found += [f"{room} has a budget and no file: take it out" for room in budgets.keys() - lines.keys()]
    for room in lines.keys() & budgets.keys():
        has = lines[room]
        budget = budgets[room]
        if has > budget:
            found.append(f"{room} has {has} lines and may have {budget}: take as much away as came in")
        elif budget - has > max(SLACK_LINES, SLACK * budget):
            found.append(f"{room} has only {has} lines of {budget}: lower its budget to {has}")
    return sorted(found)


@pytest.mark.parametrize("top", ["workshop_lib", "notebooks/lessons", "tools", "tests"])
def test_every_room_keeps_to_its_budget(top):
    assert not complaints(lines_of_rooms(ROOT / top), BUDGETS[top])
