"""What the checks of 04_horovod_tensorflow leave behind, and what they don't need."""

import subprocess
import sys

import pytest
from judge.answers import solution
from needs import needs_backend

from workshop_lib.lessons.horovod_tensorflow import judge as horovod_keras

pytestmark = [needs_backend("horovod-keras"), pytest.mark.usefixtures("healthy")]

NOTEBOOK = "04_horovod_tensorflow"


def test_a_check_leaves_no_horovod_running(team):
    def running():
        import horovod.tensorflow as hvd

        return bool(hvd.is_initialized())

    assert horovod_keras.averaging(solution(NOTEBOOK, "averaging")).passed
    assert team.run(running, show=False) == [False, False]


def test_the_checks_need_no_tensorflow_in_the_notebook():
    code = f"import sys, {horovod_keras.__name__}; print('tensorflow' in sys.modules or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
