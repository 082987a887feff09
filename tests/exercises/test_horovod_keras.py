"""The checks of 04_horovod_tensorflow accept right answers and say of wrong ones what is wrong."""

import subprocess
import sys

import horovod_keras_averaging
import horovod_keras_train
import pytest
from answers import solution, stub

from workshop_lib.notebook.exercises import horovod_keras as check

pytest.importorskip("horovod", reason="Horovod is not installed")

NOTEBOOK = "04_horovod_tensorflow"
NAMES = ["averaging", "train"]
RIGHT = horovod_keras_averaging.RIGHT | horovod_keras_train.RIGHT
WRONG = horovod_keras_averaging.WRONG | horovod_keras_train.WRONG
NEVER_ENDS = horovod_keras_averaging.NEVER_ENDS | horovod_keras_train.NEVER_ENDS


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes(name):
    verdict = getattr(check, name)(solution(NOTEBOOK, name))
    assert verdict.passed, verdict


@pytest.mark.parametrize("name", NAMES)
def test_the_stub_is_not_solved_yet(name):
    verdict = getattr(check, name)(stub(NOTEBOOK, name))
    assert verdict.passed is None
    assert "not solved yet" in repr(verdict)


def judge(answer):
    return getattr(check, answer.__name__)(answer)


@pytest.mark.parametrize("way", RIGHT)
def test_another_right_way_passes(way):
    verdict = judge(RIGHT[way]())
    assert verdict.passed, verdict


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_answer_is_rejected_with_its_hint(mistake):
    answer, hint = WRONG[mistake]
    verdict = judge(answer())
    assert verdict.passed is False, verdict
    assert hint.lower() in verdict.hint.lower(), verdict


@pytest.mark.parametrize("mistake", NEVER_ENDS)
def test_an_answer_that_never_ends_is_stopped_and_the_hint_says_why(mistake, team):
    answer, hint = NEVER_ENDS[mistake]
    verdict = judge(answer())
    assert verdict.passed is False, verdict
    assert hint.lower() in verdict.hint.lower(), verdict
    assert team.healthy, "fresh ranks are there for the next cell"


@pytest.mark.parametrize("name", NAMES)
def test_no_horovod_is_left_running(name, team):
    def horovod_runs():
        import horovod.tensorflow as hvd

        return bool(hvd.is_initialized())

    getattr(check, name)(solution(NOTEBOOK, name))
    assert team.run(horovod_runs, show=False) == [False, False]


def test_the_checks_need_no_tensorflow_in_the_notebook():
    code = f"import sys, {check.__name__}; print('tensorflow' in sys.modules or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
