"""Backends in the same processes, one after the other, in either precision; on images that are not MNIST's."""

from dataclasses import replace

import pytest
from needs import needs
from training.ladder import write_small_mnist

from workshop_lib import ranks
from workshop_lib.training.equivalence import CONSTANT_LR
from workshop_lib.training.options import TrainOptions

pytestmark = pytest.mark.full

SLOW = pytest.param(("mpi", "horovod", "deepspeed"), marks=[pytest.mark.exhaustive, needs("horovod", "deepspeed")])


# In fp32, all backends run in the same processes for tests/training/training_runs.py, too.
@pytest.mark.parametrize("backends", [("mpi", "ddp", "fsdp"), SLOW])
def test_any_backend_after_any_other_and_in_either_precision(backends, tmp_path):
    write_small_mnist(tmp_path, shape=(24, 20))
    options = TrainOptions(epochs=1, batch_size=32, train_samples=256, data_dir=str(tmp_path), **CONSTANT_LR)
    losses = {}
    try:
        team = ranks.start(2)
        pids = [about["pid"] for about in team.about()]
        for precision in ("fp32", "bf16"):
            for backend in backends:
                run = replace(options, backend=backend, precision=precision)
                losses[backend, precision] = team.train(run, show=False)["epochs"][0]["test_loss"]
        assert [about["pid"] for about in team.about()] == pids
    finally:
        ranks.stop()
    mine = losses["mpi", "fp32"]
    for backend in backends:
        assert losses[backend, "fp32"] == pytest.approx(mine, rel=1e-3)
        assert 1e-5 < abs(losses[backend, "bf16"] / mine - 1) < 0.02, backend
