"""The record of an assessment, without ranks: which exercises belong to it, and how a damaged one is refused."""

import importlib
import json
import re
import shutil
import signal

import jupytext
import pytest
from command_line import workshop

from workshop_lib.classroom import answers, assessment
from workshop_lib.course import exercises
from workshop_lib.errors import InputError
from workshop_lib.judge.sources import YOURS
from workshop_lib.maintain import generate

CORE_PATH = [source for source in generate.sources() if exercises.is_on_core_path(source.stem)]
LEFT_OUT = {"changes", "recipe"}  # of 07: to check them is to train


def row(notebook: str, exercise: str, ranks: int, *properties: str) -> dict:
    about = {"notebook": notebook, "exercise": exercise, "core": True, "ranks": ranks}
    return about | {"properties": list(properties), "source": f"def {exercise}(): …"}


ROWS = [
    row("00_start_here", "whoami", 2, "a", "b"),
    row("00_start_here", "my_part", 2, "c"),
    row("08_scaling_curves", "scaling_table", 3, "d"),
]


WRITTEN = re.compile(r"^(?:%%writefile \S*/([\w.]+)$|(?:def|class) (\w+)|(\w+) = \{)", re.MULTILINE)


def to_write(source) -> dict[str, str]:
    """The names that a learner is asked to define or write in a notebook, each with its part."""
    learner, _ = generate.split(source.read_text(encoding="utf-8"), source.name)
    cells = jupytext.reads(learner, fmt="py:percent").cells
    asked = [
        (text, part)
        for part, index, text in generate.by_part(cells)
        if cells[index].cell_type == "code" and YOURS in text
    ]
    return {next(filter(None, WRITTEN.search(text).groups())): part for text, part in asked}


@pytest.mark.parametrize("source", CORE_PATH, ids=lambda path: path.stem)
def test_every_exercise_of_the_core_path_is_assessed(source):
    wanted = {name: part == "core" for name, part in to_write(source).items() if name not in LEFT_OUT}
    listed = {task.name: task.core for task in assessment.TASKS if task.notebook == source.stem}
    differ = sorted(name for name, _ in wanted.items() ^ listed.items())
    assert not differ, f"classroom/assessment.py: TASKS and {source.name} differ in {', '.join(differ)}"


@pytest.mark.parametrize("task", assessment.TASKS, ids=lambda task: task.title)
def test_the_solution_is_found_and_the_stub_is_none(task, tmp_path):
    asked = generate.NOTEBOOKS / f"{task.notebook}.ipynb"
    shutil.copy(exercises.solutions_of(asked), tmp_path / asked.name)
    assert assessment.answer(task, tmp_path)
    assert assessment.answer(task, generate.NOTEBOOKS) is None


@pytest.mark.parametrize("task", [task for task in assessment.TASKS if task.name == task.check], ids=lambda t: t.title)
def test_the_ranks_are_those_that_the_check_needs(task):
    check = getattr(importlib.import_module(f"workshop_lib.lessons.{task.module}"), task.check)
    assert task.ranks == getattr(check, "on", 0)


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "record.jsonl"
    assessment.write(path, ROWS, "Ada")
    return path


def verify(path):
    ended = workshop("verify", path)
    return ended.exit_code, ended.output


@pytest.fixture
def passes(monkeypatch):
    """In place of running checks: every answer holds what the record says."""
    monkeypatch.setattr(
        assessment, "rerun", lambda rows: ((assessment.TITLES[assessment._title(row)], "") for row in rows)
    )


def test_a_verified_record_says_whose_it_is_and_what_that_shows(record, passes):
    code, said = verify(record)
    assert code == 0, said
    assert "3 exercises solved" in said and "doesn't show who wrote it" in said and "Ada" in said


def test_a_record_with_the_checksums_of_older_ones_is_read(record, passes):
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    checksums = {"previous": "", "digests": {"source": "0"}, "sha256": "0"}
    lines = [{"line": number, **line, **checksums} for number, line in enumerate(lines, 1)]
    lines[0]["solved"] = ["00_start_here, whoami", "00_start_here, my_part", "08_scaling_curves, scaling_table"]
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, said = verify(record)
    assert code == 0 and "3 exercises solved" in said, said


def test_a_record_with_an_exercise_that_has_left_the_core_path_is_read(record, passes):
    with record.open("a") as file:
        file.write(json.dumps(row("07_large_batch", "layer_rate", 2, "e")) + "\n")
    code, said = verify(record)
    assert code == 0 and "4 exercises solved" in said, said


DAMAGED = {
    "twice": (ROWS[0], "line 5: 00_start_here, whoami is there twice"),
    "an invented one": ({"exercise": "x"}, "line 5: the core path has no exercise"),
    "no object": (7, "line 5 is no JSON object"),
    "odd ranks": (row("08_scaling_curves", "serial_fraction", 1000), "1000 ranks, but it's checked on 2 to 8"),
    "other ranks": (row("01_mpi_basics", "exchange", 2), "2 ranks, but it's checked on 4"),
    "an odd type": (row("01_mpi_basics", "exchange", 4) | {"source": 7}, "is missing, or not what it should be"),
}  # fmt: skip


@pytest.mark.parametrize("title", DAMAGED)
def test_no_check_runs_on_a_record_with_a_damaged_line(record, title):
    line, words = DAMAGED[title]
    with record.open("a") as file:
        file.write(json.dumps(line) + "\n")
    code, said = verify(record)
    assert code == 1 and said.startswith("workshop: ") and said.count("\n") == 1
    assert words in said, said


@pytest.mark.parametrize(
    "text", ["", "{}\n", "[1]\n\n", '{"record": "assessment", "schema": 1, "solved": 5}\n', "[" * 50_000]
)
def test_what_is_no_record_is_refused_in_a_sentence(tmp_path, text):
    (tmp_path / "x.jsonl").write_text(text)
    code, said = verify(tmp_path / "x.jsonl")
    assert code == 1 and said.startswith("workshop: ") and said.count("\n") == 1
    assert verify(tmp_path / "none.jsonl")[0] == 1


def test_a_hostile_name_cannot_reach_the_terminal(tmp_path, passes):
    assessment.write(tmp_path / "x.jsonl", ROWS, "\x1b[2Jx")
    assert "\x1b" not in verify(tmp_path / "x.jsonl")[1]
    assessment.write(tmp_path / "x.jsonl", [row("\x1b[2J", "x", 2)], "Eve")
    assert "\x1b" not in verify(tmp_path / "x.jsonl")[1]


def test_source_that_never_ends_or_exits_is_a_verdict(monkeypatch):
    monkeypatch.setattr(assessment, "LOAD_LIMIT_S", 0.2)
    for source, words in (
        ("while True: pass", "had not been defined after"),
        ("raise SystemExit(0)", "SystemExit"),
        ("1 +", "SyntaxError"),
    ):
        verdict = assessment.verdict(assessment.TASKS[0], source)
        assert verdict.passed is False and words in f"{verdict.failed}\n{verdict.details}"


def test_the_limit_of_an_answer_is_off_before_its_handler_is(monkeypatch):
    """Otherwise, the alarm would end the process if it went off between the two."""
    changed = []
    monkeypatch.setattr(signal, "signal", lambda *_: changed.append("handler"))
    monkeypatch.setattr(signal, "setitimer", lambda *_: changed.append("timer") or (0.0, 0.0))
    assessment._defined("def answer(): ...", "answer")
    assert changed == ["handler", "timer", "timer", "handler"]


def test_nothing_is_written_while_nothing_is_solved(tmp_path):
    ended = workshop("assess", "--out", tmp_path / "x.jsonl")
    assert ended.exit_code == 0 and "0 of" in ended.output and not list(tmp_path.iterdir())
    with pytest.raises(InputError):
        answers.code_cells(tmp_path / "00_x.ipynb")
