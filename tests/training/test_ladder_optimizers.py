"""The large-batch optimizers with every PyTorch backend: two ranks against one process, after some steps."""

import itertools

import pytest
from training.ladder import IN_PYTORCH, STEPS_PER_EPOCH, agreed_record, cases, difference, ladder_run

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # the first test waits for all training runs

STEPS = STEPS_PER_EPOCH + 3  # over the end of an epoch, whose last batch is ragged
OPTIMIZERS = {
    "lars": {"optimizer": "lars", "lr": 5.0},
    "lamb": {"optimizer": "lamb", "lr": 0.01},
    "muon": {"optimizer": "muon", "lr": 0.01},
}
PAIRS = [
    pair for pair in itertools.product(IN_PYTORCH, OPTIMIZERS) if pair != ("fsdp", "muon")
]  # it needs whole matrices


def is_quick(backend, optimizer):
    """In `make test-full`: each optimizer with one backend, and one optimizer, which needs the norms of whole tensors,
    with each backend."""
    return backend == "mpi" or optimizer == "lars"


def run_of(folder, backend, optimizer, ranks, **more):
    stage = {"zero_stage": 0} if backend == "deepspeed" else {}
    options = {"max_steps": STEPS} | OPTIMIZERS[optimizer] | stage
    return ladder_run(folder, "smooth", "ragged", ranks, backend, f"{backend}-{optimizer}", options, **more)


def training_runs(folder):
    alone = [run_of(folder, "base", name, 1) for name in OPTIMIZERS]
    return {1: alone, 2: [run_of(folder, *pair, 2, exhaustive=not is_quick(*pair)) for pair in PAIRS]}


@pytest.mark.parametrize(("backend", "optimizer"), cases(PAIRS, is_quick))
def test_same_weights_as_one_process(trained, backend, optimizer):
    folder, outcomes = trained
    agreed_record(outcomes, f"{backend}-{optimizer}")
    assert difference(folder, f"{backend}-{optimizer}", f"base-{optimizer}") < 1e-5


def test_the_optimizers_differ(trained):
    folder, _ = trained
    for one, other in itertools.combinations(OPTIMIZERS, 2):
        assert difference(folder, f"base-{one}", f"base-{other}") > 1e-3
