"""The checks of 04_horovod_tensorflow accept right answers and say of wrong ones what is wrong."""

import subprocess
import sys

import horovod_keras_averaging
import horovod_keras_train
import pytest
from exercises.verdicts import Verdicts

from workshop_lib.exercises import horovod_keras as check

pytest.importorskip("horovod", reason="Horovod is not installed")


class TestVerdicts(Verdicts):
    check, notebook = check, "04_horovod_tensorflow"
    names = ("averaging", "train")
    right = horovod_keras_averaging.RIGHT | horovod_keras_train.RIGHT
    wrong = horovod_keras_averaging.WRONG | horovod_keras_train.WRONG
    never_ends = horovod_keras_averaging.NEVER_ENDS | horovod_keras_train.NEVER_ENDS

    def test_the_solution_passes(self, name, team):
        def horovod_runs():
            import horovod.tensorflow as hvd

            return bool(hvd.is_initialized())

        super().test_the_solution_passes(name)
        assert team.run(horovod_runs, show=False) == [False, False], "the check leaves none running"


def test_the_checks_need_no_tensorflow_in_the_notebook():
    code = f"import sys, {check.__name__}; print('tensorflow' in sys.modules or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
