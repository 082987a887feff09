"""Every exercise: the solution and other right ways pass, the stub isn't solved yet, each known mistake gets its hint,
and a number in place of the number of ranks never passes.

The known mistakes are the exercise's own edits. The other right ways, and answers that never end, stand in the
alternatives.py of the lesson's tests.
"""

import ast
import functools
import importlib
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from exercises.answers import from_source, own, solution, source, stub, variant
from needs import NEEDED_BY_NOTEBOOKS, needs

from workshop_lib import ranks
from workshop_lib.exercises.exercises import by_notebook
from workshop_lib.exercises.judge import Exercise, Verdict, observe_one
from workshop_lib.paths import ROOT

ROOMS = sorted(path.parent.name for path in ROOT.glob("tests/lessons/*/alternatives.py"))


@functools.cache
def alternatives(room: str) -> SimpleNamespace:
    """The tables of right answers beside the tests of a lesson."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "lessons" / room / "alternatives.py")))


def of_room(room: str) -> dict[tuple[str, str], Exercise]:
    """The exercises that a lesson's judges define, by notebook and name."""
    files: list[Path] = sorted((ROOT / "notebooks" / "lessons" / room).glob("judge*.py"))
    modules = [importlib.import_module(f"lessons.{room}.{file.stem}") for file in files]
    found = [each for module in modules for each in vars(module).values() if isinstance(each, Exercise)]
    return {(each.notebook, each.name): each for each in found if each.notebook}


EXERCISES = {key: exercise for room in ROOMS for key, exercise in of_room(room).items()}
TABLES = {key: alternatives(room) for room in ROOMS for key in of_room(room)}
# Judged as files or by what was chosen, each by a function with tests of its own.
OTHERS = {"hello.py", "my_script.py", "job.sh", "job_pbs.sh", "script", "recompute"}
OTHERS |= {"diagnoses", "causes", "recipe", "changes", "adam_rates", "repaired"}


def size_of(key: tuple[str, str]) -> int:
    """The number of ranks for an exercise."""
    return EXERCISES[key].on or getattr(TABLES[key], "RANKS", 2)


KEYS = sorted(EXERCISES, key=size_of)  # so that ranks are kept


def test_no_exercise_is_left_out():
    of_notebooks = {(notebook, name) for notebook, names in by_notebook().items() for name in names}
    assert {(notebook, name) for notebook, name in of_notebooks if name not in OTHERS} == set(EXERCISES)


def cases(table: str = "") -> list:
    """The parameters (notebook, name, title) of each answer in the tables of this name, or of each edit.

    To end ranks and start fresh ones takes seconds: one answer per notebook that never ends, unless everything is run.
    """
    found = []
    begun = set()
    for notebook, name in KEYS:
        answers = getattr(TABLES[notebook, name], table, {}).get(name, {})
        for title in answers if table else range(len(EXERCISES[notebook, name].edits)):
            marks = [needs(*NEEDED_BY_NOTEBOOKS.get(notebook, ()))]
            if table == "NEVER_ENDS":
                marks.append(pytest.mark.exhaustive if notebook in begun else pytest.mark.full)
            begun.add(notebook)
            found.append(pytest.param(notebook, name, title, id=f"{notebook}-{name}-{title}", marks=marks))
    return found


def made(notebook: str, name: str, answer: list | str):
    """The answer that a table has as edits of the solution or as a learner's text."""
    return own(notebook, name, answer) if isinstance(answer, str) else variant(notebook, name, *answer)


def judged(notebook: str, name: str, answer, timeout_s: float | None = None) -> Verdict:
    """The verdict on an answer. What doesn't communicate needs no ranks here, unless it raises or never ends."""
    exercise = EXERCISES[notebook, name]
    if not exercise.communicates and timeout_s is None:
        seen = observe_one(None, exercise.observe, answer)
        if not isinstance(seen, Exception):
            return exercise.verdict([seen])
    team = ranks.start(size_of((notebook, name)))
    if not team.healthy:
        team.restart()
    return (exercise if timeout_s is None else replace(exercise, timeout_s=timeout_s))(answer)


EACH = pytest.mark.parametrize(
    ("notebook", "name"),
    [pytest.param(*key, id="-".join(key), marks=[needs(*NEEDED_BY_NOTEBOOKS.get(key[0], ()))]) for key in KEYS],
)


@EACH
def test_the_solution_passes_and_the_stub_is_not_solved_yet(notebook, name):
    verdict = judged(notebook, name, solution(notebook, name))
    assert verdict.passed is True, verdict
    verdict = judged(notebook, name, stub(notebook, name))
    assert verdict.passed is None
    assert "not solved yet" in repr(verdict)


NUMBERS_OF_RANKS = {"comm.size", "self.comm.size", "dist.get_world_size()", "hvd.size()", "size", "ranks"}


class WithNumber(ast.NodeTransformer):
    """Puts a number in place of whatever a solution asks for the number of ranks."""

    def __init__(self, number: int):
        self.number = number
        self.found = False

    def visit(self, node: ast.AST) -> ast.AST:
        is_read = isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store)
        if is_read and ast.unparse(node) in NUMBERS_OF_RANKS:
            self.found = True
            return ast.Constant(self.number)
        return self.generic_visit(node)


@pytest.mark.full
@EACH
def test_a_number_in_place_of_the_number_of_ranks_is_rejected(notebook, name):
    edit = WithNumber(size_of((notebook, name)))
    changed = edit.visit(ast.parse(source(notebook, name)))
    if edit.found:
        verdict = judged(notebook, name, from_source(ast.unparse(ast.fix_missing_locations(changed)), name))
        assert verdict.passed is False, verdict


@pytest.mark.parametrize(("notebook", "name", "title"), cases("RIGHT"))
def test_another_right_way_passes(notebook, name, title):
    verdict = judged(notebook, name, made(notebook, name, TABLES[notebook, name].RIGHT[name][title]))
    assert verdict.passed is True, verdict


@pytest.mark.parametrize(("notebook", "name", "at"), cases())
def test_a_known_mistake_is_rejected_with_its_hint(notebook, name, at):
    edit = EXERCISES[notebook, name].edits[at]
    verdict = judged(notebook, name, variant(notebook, name, *edit.replacements))
    assert verdict.passed is False, verdict
    assert edit.hint.lower() in verdict.hint.lower(), verdict


@pytest.mark.parametrize(("notebook", "name", "title"), cases("WRONG"))
def test_an_unforeseen_answer_is_rejected_and_what_it_did_is_said(notebook, name, title):
    answer, words = TABLES[notebook, name].WRONG[name][title]
    verdict = judged(notebook, name, made(notebook, name, answer))
    assert verdict.passed is False, verdict
    assert words.lower() in f"{verdict.hint}\n{verdict.details}".lower(), verdict


@pytest.mark.parametrize(("notebook", "name", "title"), cases("NEVER_ENDS"))
def test_an_answer_that_never_ends_is_stopped_and_the_hint_says_why(notebook, name, title):
    answer, hint = TABLES[notebook, name].NEVER_ENDS[name][title]
    verdict = judged(notebook, name, made(notebook, name, answer), timeout_s=2.0)
    assert verdict.passed is False, verdict
    assert ", line " in verdict.details, "it says on which line the ranks wait"
    assert hint in verdict.hint, verdict
    assert ranks.current().healthy, "fresh ranks are there for the next cell"
