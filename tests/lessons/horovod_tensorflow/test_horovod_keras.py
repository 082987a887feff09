"""The solutions of 04_horovod_tensorflow equal one process, and what the checks leave behind and don't need."""

import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
from exercises.answers import solution
from mpi4py import MPI
from needs import needs_backend

from lessons.horovod_tensorflow import judge as horovod_keras

pytestmark = [needs_backend("horovod-keras"), pytest.mark.usefixtures("healthy")]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
NOTEBOOK = "04_horovod_tensorflow"


def test_a_check_leaves_no_horovod_running(team):
    def running():
        import horovod.tensorflow as hvd

        return bool(hvd.is_initialized())

    assert horovod_keras.averaging(solution(NOTEBOOK, "averaging")).passed
    assert team.run(running, show=False) == [False, False]


def test_the_checks_need_no_tensorflow_in_the_notebook():
    imports = f"import sys, workshop_lib, {horovod_keras.__name__}"
    code = f"{imports}; print('tensorflow' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def descended(size: int) -> np.ndarray:
    """Weights after two steps of SGD with momentum on all samples, in one process and in float64."""
    images, labels = horovod_keras.samples(horovod_keras.SAMPLES * size)
    inputs = np.column_stack([images, np.ones(len(images))])
    weights = np.vstack(horovod_keras.start(0)).astype(float)
    velocity = 0.0
    for _ in range(2):
        odds = np.exp(inputs @ weights)
        error = odds / odds.sum(axis=1, keepdims=True) - np.eye(2)[labels]
        velocity = 0.9 * velocity - 0.02 * size * inputs.T @ error / len(labels)
        weights = weights + velocity
    return weights.ravel()


def stepped(averaging, train) -> dict:
    """On a rank: the weights of averaging optimizers and of plain ones with mean gradients, and those of `train`."""
    comm = MPI.COMM_WORLD
    horovod_keras.join()
    with horovod_keras.horovod(comm):
        made = horovod_keras.optimizers()
        pairs = [
            (horovod_keras.stepped(averaging(made[what]), [comm.rank]), horovod_keras.stepped(plain, range(comm.size)))
            for what, plain in horovod_keras.optimizers().items()
        ]
    return {"pairs": pairs, "trained": horovod_keras.trained(train, comm)[0]}


def test_the_solutions_equal_one_process_with_all_samples(team):
    solutions = [solution(NOTEBOOK, name) for name in ("averaging", "train")]
    for found in team.run(stepped, *solutions, timeout=90):
        for averaged, alone in found["pairs"]:
            assert np.allclose(averaged, alone, rtol=1e-4, atol=1e-6)
        assert np.allclose(found["trained"], descended(team.n), rtol=1e-4, atol=1e-6)
