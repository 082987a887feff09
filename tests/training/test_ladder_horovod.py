"""The ladder's Horovod rungs: against one process of the same framework, and PyTorch against TensorFlow.

Both frameworks take the network without jumps in its gradient (see test_ladder), and the ragged run, 12 of
whose 13 steps an epoch give all ranks as many samples. Keras keeps the learning rate inside the momentum,
PyTorch outside: the two agree while the rate is constant, as it is here.
"""

import itertools

import pytest
from needs import needs_backend
from training.ladder import HOROVOD, agreed_record, cases, difference, ladder_run

from workshop_lib.training.equivalence import CONSTANT_LR

pytestmark = [needs_backend("horovod-tf"), pytest.mark.timeout(900)]  # the first test waits for all training runs

WITHIN = {"same framework": 1e-5, "other framework": 1e-4}


def constant(folder, ranks, backend):
    return ladder_run(folder, "smooth", "ragged", ranks, backend, f"constant-{backend}-{ranks}", CONSTANT_LR)


def training_runs(folder):
    on_two = [constant(folder, 2, backend) for backend in HOROVOD]
    stock = {"options": on_two[-1]["options"] | {"checkpoint": None}, "mistake": "stock_keras", "name": "stock"}
    on_four = [constant(folder, 4, backend) | {"exhaustive": backend != "horovod"} for backend in HOROVOD]
    return {
        1: [constant(folder, 1, backend) for backend in ("base", "horovod-tf")],
        2: [*on_two, on_two[-1] | stock],
        4: on_four,
    }


CASES = cases(itertools.product(HOROVOD, (2, 4)), lambda backend, ranks: ranks == 2 or backend == "horovod")


@pytest.mark.parametrize(("backend", "ranks"), CASES)
def test_same_weights_as_one_process(trained, backend, ranks):
    folder, outcomes = trained
    name = f"constant-{backend}-{ranks}"
    agreed_record(outcomes, name)
    for reference in ("base", "horovod-tf"):
        same = (reference == "base") == (backend == "horovod")
        limit = WITHIN["same framework" if same else "other framework"]
        assert difference(folder, name, f"constant-{reference}-1") < limit


def test_horovod_s_own_keras_optimizer_fails(trained):
    """It trains to the end without averaging; only the comparison of the ranks' weights tells."""
    _, outcomes = trained
    for rank in outcomes["stock"]:
        assert "the weights of rank 1 differ from those of rank 0" in rank["error"]
