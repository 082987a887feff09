"""A graded cell gives the point for a right answer and to no other, and says why; with nbgrader itself where it is."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import assigned
import nbformat
import pytest

from workshop_lib.classroom import grading
from workshop_lib.judge import NotPassed
from workshop_lib.lessons.start_here import judge as start_here
from workshop_lib.paths import ROOT

pytestmark = pytest.mark.usefixtures("healthy")

MISTAKE = ("return comm.rank, comm.size", "return comm.size, comm.rank", "The rank comes first, then the size.")


def run(answer: str):
    """Run an answer's cell and the graded cell after it; returns what nbgrader would show."""
    cells, namespace = assigned.cells("00_start_here"), {"check": start_here, "__name__": "__main__"}
    exec(answer, namespace)
    check = cells["check-whoami"].source
    return eval(check, namespace)


def test_the_solution_gets_the_point_but_neither_the_stub_nor_a_mistake_which_gets_its_hint():
    answer = assigned.cells("00_start_here")["whoami"].source
    assert run(assigned.solved(answer)).passed
    with pytest.raises(NotPassed, match="not solved yet"):
        run(assigned.released(answer))
    right, wrong, hint = MISTAKE
    with pytest.raises(NotPassed, match=hint):
        run(assigned.solved(answer).replace(right, wrong))


MISSING = "nbgrader is not installed: .venv/bin/pip install -c constraints.txt nbgrader"
STUDENTS = {"ada": "solved everything", "bob": "submitted what was released", "eve": "made a known mistake in each"}
MISTAKES = {  # of each assignment: the exercise, what's right, what's wrong, and the hint
    "00_start_here": ("whoami", *MISTAKE),
    "02_synchronous_sgd": (
        "weighted_mean",
        "total / comm.allreduce(n_samples)",
        "total / comm.size",
        "Divide by the number of all samples, not of ranks.",
    ),
}


def nbgrader(course, *words: str) -> None:
    first = {"PYTHONPATH": ROOT, "PATH": Path(sys.executable).parent}  # it starts `alembic`
    env = os.environ | {name: f"{value}{os.pathsep}{os.environ.get(name, '')}" for name, value in first.items()}
    command = [sys.executable, "-m", "nbgrader", *words]
    ran = subprocess.run(command, cwd=course, env=env, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def submit(course, stem: str, student: str) -> None:
    """The released notebook, as this student fills it."""
    target = course / "submitted" / student / stem
    shutil.copytree(course / "release" / stem, target)
    path, answers = target / f"{stem}.ipynb", assigned.cells(stem)
    notebook = nbformat.read(path, as_version=4)
    exercise, right, wrong, _ = MISTAKES[stem]
    for cell in notebook.cells:
        about = cell.metadata.get("nbgrader", {})
        if about.get("solution"):
            assert "YOUR CODE HERE" in cell.source and grading.BEGIN not in cell.source
            if student != "bob":
                cell.source = assigned.solved(answers[about["grade_id"]].source)
            if student == "ada" and about["grade_id"] == exercise:  # nbgrader takes a kernel's stderr for an error
                cell.source = cell.source.replace("    return", "    print('careful', file=sys.stderr)\n    return")
                cell.source = f"import sys\n\n{cell.source}"
            if student == "eve" and about["grade_id"] == exercise:
                assert right in cell.source
                cell.source = cell.source.replace(right, wrong)
    nbformat.write(notebook, path)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stem", MISTAKES)
def test_nbgrader_releases_grades_and_explains(stem, tmp_path):
    pytest.importorskip("nbgrader", reason=MISSING)
    from nbgrader.api import Gradebook

    [(_, exercises)] = grading.export([stem], tmp_path)
    nbgrader(tmp_path, "generate_assignment", stem)
    for student in STUDENTS:
        submit(tmp_path, stem, student)
    nbgrader(tmp_path, "autograde", stem)
    nbgrader(tmp_path, "generate_feedback", stem)
    exercise, *_, hint = MISTAKES[stem]
    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as book:
        scores = {student: book.find_submission(stem, student).score for student in STUDENTS}
        of_eve = {grade.name: grade.score for grade in book.find_submission(stem, "eve").notebooks[0].grades}
    print(json.dumps(scores))
    assert scores == {"ada": len(exercises), "bob": 0, "eve": len(exercises) - 1}
    assert [name for name, score in of_eve.items() if not score] == [f"check-{exercise}"]
    feedback = {student: (tmp_path / "feedback" / student / stem / f"{stem}.html").read_text() for student in STUDENTS}
    assert hint in feedback["eve"] and "NotPassed" not in feedback["ada"]
    assert feedback["bob"].count("not solved yet") >= len(exercises)
