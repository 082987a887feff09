"""The ladder's Horovod rungs: against one process of the same framework, and PyTorch against TensorFlow.

Both frameworks take the network without jumps in its gradient (see test_ladder), and the ragged run, 24 of
whose 25 steps an epoch give all ranks as many samples. Keras keeps the learning rate inside the momentum,
PyTorch outside: the two agree while the rate is constant, as it is here.
"""

import pytest
from ranks.ladder import STEPS, agreed_record, ladder_run, weights, write_small_mnist
from ranks.launching import run_training

from workshop_lib.training.equivalence import CONSTANT_LR, largest_relative_difference

pytest.importorskip("horovod", reason="Horovod is not installed")
pytestmark = pytest.mark.timeout(600)

CASE = "ragged"
BACKENDS = ("horovod", "horovod-tf", "horovod-keras")
WITHIN = {"same framework": 1e-5, "other framework": 1e-4}


@pytest.fixture(scope="module")
def rungs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("horovod")
    write_small_mnist(folder)
    outcomes = {}
    for ranks in (1, 2, 4):
        names = ("base", "horovod-tf") if ranks == 1 else BACKENDS
        runs = [ladder_run(folder, "smooth", CASE, ranks, name) for name in names]
        for run in runs:
            run["options"] |= CONSTANT_LR
        if ranks == 2:
            stock = {"options": runs[-1]["options"] | {"checkpoint": None}, "mistake": "stock_keras"}
            runs.append(runs[-1] | stock | {"name": "stock"})
        outcomes |= run_training(folder, runs, ranks, timeout_s=300)
    return folder, outcomes


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_same_weights_as_one_process(rungs, backend, ranks):
    folder, outcomes = rungs
    name = f"smooth-{CASE}-{backend}-{ranks}"
    agreed_record(outcomes, name)
    for reference in ("base", "horovod-tf"):
        same = (reference == "base") == (backend == "horovod")
        limit = WITHIN["same framework" if same else "other framework"]
        difference = largest_relative_difference(weights(folder, name), weights(folder, f"smooth-{CASE}-{reference}-1"))
        print(f"{name} against {reference}: {difference:.1e} after {STEPS} steps")
        assert difference < limit


def test_horovod_s_own_keras_optimizer_fails(rungs):
    """It trains to the end without averaging; only the comparison of the ranks' weights tells."""
    _, outcomes = rungs
    for rank in outcomes["stock"]:
        assert "the weights of rank 1 differ from those of rank 0" in rank["error"]
