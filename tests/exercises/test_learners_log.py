"""The learner's own file: what is kept, from where, and that nothing about it can break a cell."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from workshop_lib import paths
from workshop_lib.exercises import exercises, learners_log
from workshop_lib.exercises.judge import OUTDATED, Exercise, Property, Verdict
from workshop_lib.exercises.learners_log import Check, Prediction
from workshop_lib.machine import kernel
from workshop_lib.notebook.prediction import predict


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The learner's file, in a kernel of 01_mpi_basics.ipynb."""
    monkeypatch.setattr(paths, "LEARNER", tmp_path / "progress.jsonl")
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "01_mpi_basics.ipynb"))
    return tmp_path / "progress.jsonl"


def what_is_kept():
    return [{name: value for name, value in event.items() if name != "time"} for event in learners_log.kept()]


def test_a_guess_with_its_outcome_and_a_verdict_are_kept(file):
    guess = predict("How many?", 0, 10, "ranks")
    guess.compare(2)  # nothing was guessed
    guess.commit(3)
    guess.commit(4)
    guess.compare(2)
    exercise = Exercise("whoami", None, lambda seen: iter([Property("a pair", seen == [1])]))
    for answer in ("not a function", None):
        exercise(answer)
    about = {"notebook": "01_mpi_basics", "what": "prediction", "question": "How many?", "unit": "ranks"}
    kept = what_is_kept()
    guesses = [(3.0, None), (4.0, None), (4.0, 2)]
    assert kept[:3] == [about | {"guess": value, "measured": measured} for value, measured in guesses]
    assert [(event["exercise"], event["passed"]) for event in kept[3:]] == [("whoami", False)] * 2


def test_outside_a_learners_notebook_nothing_is_kept(file, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", str(file.parent / "solutions" / "01_mpi_basics.ipynb"))
    learners_log.keep(Check("whoami", True))
    monkeypatch.delenv("JPY_SESSION_NAME")
    learners_log.keep(Check("whoami", True))
    assert not file.exists()


def test_a_file_that_cannot_be_written_or_a_value_that_is_none_of_json_breaks_nothing(file, monkeypatch):
    learners_log.keep(Prediction("?", "", object()))
    file.mkdir()
    learners_log.keep(Check("whoami", True))
    blocked = file.with_name("a file")
    blocked.touch()
    monkeypatch.setattr(paths, "LEARNER", blocked / "no" / "such" / "folder")
    learners_log.keep(Check("whoami", True))
    assert what_is_kept() == []


def test_a_long_text_is_clipped_and_a_damaged_line_is_left_out(file):
    learners_log.keep(Check("ring", False, "x" * 10_000))
    assert len(file.read_text()) < 500
    file.write_text('{"torn\n' + file.read_text())
    assert len(what_is_kept()) == 1


@pytest.mark.parametrize(
    ("cell", "outdated"),
    [
        ("def answer(comm):\n    return comm.rank +", True),
        ("import nowhere\ndef answer(comm):\n    return comm.rank", True),
        ("answer", False),
        ("def answer(comm):\n    return comm.rank\n1/0", False),
        ("%%time\ndef answer(comm): return", False),
        ("import os\nanswer = os.fspath", False),
        ("answer = 1", False),
    ],
)
def test_a_check_says_if_the_last_cell_with_the_function_failed(monkeypatch, cell, outdated):
    shell = InteractiveShell()
    monkeypatch.setattr(kernel, "shell", lambda: shell)
    monkeypatch.setattr(Exercise, "_judge", lambda self, function: Verdict("answer", passed=True))
    shell.run_cell("def answer(comm):\n    return 1\n", store_history=True)
    shell.run_cell(cell, store_history=True)
    first, *_ = repr(Exercise("answer", print, iter)(shell.user_ns["answer"])).splitlines()
    assert first == ("answer: correct. " + OUTDATED if outdated else "answer: correct")


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
