"""The learner's own file: what is kept, from where, and that nothing about it can break a cell."""

import json

import pytest

from workshop_lib import paths
from workshop_lib.course import exercises, learner
from workshop_lib.course.learner import Check
from workshop_lib.judge import Exercise, Property


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The learner's file, in a kernel of 01_mpi_basics.ipynb."""
    monkeypatch.setattr(paths, "LEARNER", tmp_path / "progress.jsonl")
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "01_mpi_basics.ipynb"))
    return tmp_path / "progress.jsonl"


def test_a_verdict_is_kept(file):
    exercise = Exercise("whoami", None, lambda seen: iter([Property("a pair", seen == [1])]))
    exercise("not a function")
    [kept] = learner.kept()
    failed = "a function was expected, not 'not a function'"
    about = {"notebook": "01_mpi_basics", "exercise": "whoami", "passed": False, "failed": failed}
    assert kept == about | {"time": kept["time"]}


def test_outside_a_learners_notebook_nothing_is_kept(file, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", str(file.parent / "solutions" / "01_mpi_basics.ipynb"))
    learner.keep(Check("whoami", True))
    monkeypatch.delenv("JPY_SESSION_NAME")
    learner.keep(Check("whoami", True))
    assert not file.exists()


def test_a_file_that_cannot_be_written_breaks_nothing(file, monkeypatch):
    file.mkdir()
    learner.keep(Check("whoami", True))
    blocked = file.with_name("a file")
    blocked.touch()
    monkeypatch.setattr(paths, "LEARNER", blocked / "no" / "such" / "folder")
    learner.keep(Check("whoami", True))
    assert list(learner.kept()) == []


def test_the_folders_of_the_file_are_made(file, monkeypatch):
    monkeypatch.setattr(paths, "LEARNER", file.parent / "two" / "folders" / file.name)
    learner.keep(Check("whoami", True))
    assert paths.LEARNER.exists()


def test_the_file_is_bounded_and_a_damaged_line_is_left_out(file, monkeypatch):
    learner.keep(Check("ring", False, "x" * 10_000))
    assert len(file.read_text()) < 500
    file.write_text('{"torn\n' + file.read_text())
    assert len(list(learner.kept())) == 1
    monkeypatch.setattr(learner, "FILE_LIMIT_BYTES", 100)
    learner.keep(Check("ring", True))
    assert [json.loads(line)["passed"] for line in file.read_text().splitlines()[1:]] == [False]


def test_a_verdict_that_failed_links_to_its_exercise_in_the_solutions_beside_its_notebook(file):
    exercise = Exercise("exchange", None, lambda seen: iter([Property("a pair", seen == [1], hint="try again")]))
    file = "solutions/01_mpi_basics_solutions.ipynb"
    assert "<a" not in exercise.verdict([2])._repr_html_(), "there is no such file"
    folder = paths.LEARNER.parent
    (folder / "solutions").mkdir()
    (folder / file).touch()
    shown = exercise.verdict([2])._repr_html_()
    heading = exercises.by_notebook()["01_mpi_basics"]["exchange"].heading
    assert heading.startswith("Exercise 1") and f'<a href="{file}#{heading.replace(" ", "-")}">' in shown
    assert "Open the solution of exchange</a>" in shown
    assert "<a" not in exercise.verdict([1])._repr_html_()
    assert "<a" not in exercise.verdict(["unsolved"])._repr_html_()
