"""An assessment on ranks: made from a learner's notebooks, verified, refused where a source doesn't do what is said."""

import json
import re
import shutil

import command_line
import pytest

from workshop_lib.classroom import assessment
from workshop_lib.course import exercises
from workshop_lib.maintain import generate

pytestmark = pytest.mark.full

FEW = ("00_start_here", "08_scaling_curves")


def workshop(*arguments):
    ended = command_line.workshop(*arguments)
    return ended.exit_code, ended.output


def assessed(folder, solved) -> str:
    """The notebooks of a learner who solved all of `solved`, and what `workshop assess` says of them."""
    for stem in dict.fromkeys(task.notebook for task in assessment.TASKS):
        asked = generate.NOTEBOOKS / f"{stem}.ipynb"
        shutil.copy(exercises.solutions_of(asked) if stem in solved else asked, folder / asked.name)
    code, said = workshop("assess", "--notebooks", folder, "--out", folder / "record.jsonl", "--learner", "Ada")
    assert code == 0, said
    return said


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learner")
    said = assessed(folder, FEW)
    assert f"Solved: 4 of {sum(task.core for task in assessment.TASKS)} core exercises, 0 of" in said
    return folder / "record.jsonl"


def test_a_record_made_from_notebooks_is_verified_and_passes_once_more(record):
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["exercise"] for line in lines[1:]] == ["whoami", "my_part", "scaling_table", "serial_fraction"]
    assert {line["ranks"] for line in lines[1:]} == {2} and all(len(line["properties"]) > 2 for line in lines[1:])
    assert lines[0]["versions"]["mpi"]
    code, said = workshop("verify", record)
    assert code == 0 and said.count("core   passes here, too") == 4, said


def test_a_made_up_record_is_found_out_by_running_it(record, tmp_path):
    _, *rows = [json.loads(line) for line in record.read_text().splitlines()]
    rows[0]["source"] = "def whoami(comm):\n    return 0, 2\n"
    rows[1]["source"] = "import os\nraise SystemExit"
    rows[2]["properties"] = ["it is perfect"]
    del rows[3]["properties"][0]
    assessment.write(tmp_path / "x.jsonl", rows, "Eve")
    code, said = workshop("verify", tmp_path / "x.jsonl", "--run")  # an older way to type it
    assert code == 1 and "4 of 4 answers don't do what the record says" in said, said
    for words in ("rank and size are right on every rank", "SystemExit", "it is perfect", "leaves out"):
        assert words in said, said


@pytest.mark.exhaustive
def test_a_learner_who_solved_everything(tmp_path):
    said = assessed(tmp_path, {task.notebook for task in assessment.TASKS})
    assert "not " not in said.partition("record")[0], said
    code, said = workshop("verify", tmp_path / "record.jsonl")
    assert code == 0 and len(re.findall("(core  |deeper) passes here, too", said)) == len(assessment.TASKS), said
