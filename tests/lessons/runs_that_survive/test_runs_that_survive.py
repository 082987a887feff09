"""The exercises of 13b accept every right way, and reject wrong answers with the hint that names the mistake."""

import runpy

import pytest
from exercises.answers import written

from workshop_lib.paths import SCRIPTS

from lessons.runs_that_survive import judge as check

pytestmark = pytest.mark.usefixtures("healthy")

IMPORTS = "import os, pathlib, shutil, signal, tempfile\nimport torch"
SAVE = "save(state, path)"


def test_fault_injection_gets_the_learners_function_and_the_modules_it_uses(tmp_path):
    mine = written(IMPORTS, SAVE, "torch.save(state, f'{path}.mine')", "shutil.move(f'{path}.mine', path)")
    text = check.script("elastic.py", tmp_path / "elastic.py", mine).read_text()
    assert "shutil.move" in text and "import shutil as shutil" in text and "os.replace" not in text
    assert text.count("def save(") == text.count("def train(") == 1
    compile(text, "elastic.py", "exec")


def test_an_open_exercise_leaves_the_scripts_own_function(tmp_path, capsys):
    stub = written("", SAVE, "raise NotImplementedError('your code here')")
    assert check.script("elastic.py", tmp_path / "mine.py", stub).read_text() == (SCRIPTS / "elastic.py").read_text()
    assert "save isn't solved yet" in capsys.readouterr().out


def test_the_script_to_take_home_has_the_solution():
    supervise = runpy.run_path(str(SCRIPTS / "survive.py"), run_name="script")["supervise"]
    verdict = check.supervise.verdict([check.supervise.observe(None, supervise)])
    assert verdict.passed is True, verdict
