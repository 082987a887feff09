"""Every backend in the same processes, one after the other, in another order, and in bf16; on images that are not
MNIST's."""

from dataclasses import replace

import pytest
from needs import needs
from training.ladder import write_small_mnist

from workshop_lib import ranks
from workshop_lib.training.backends import REGISTRY
from workshop_lib.training.equivalence import CONSTANT_LR
from workshop_lib.training.options import TrainOptions

pytestmark = pytest.mark.full

QUICK = ("mpi", "ddp", "fsdp")  # all others run in the same processes, too, for tests/training/trainings.py
ALL = [pytest.mark.exhaustive, needs("deepspeed", "horovod", "tensorflow")]
STEPS = {"epochs": 1, "batch_size": 32, "train_samples": 256, **CONSTANT_LR}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("backends", "orders"), [(QUICK, 1), pytest.param(tuple(REGISTRY), 2, marks=ALL)])
def test_any_backend_after_any_other_and_in_either_precision(backends, orders, tmp_path):
    write_small_mnist(tmp_path, shape=(24, 20))
    steps = STEPS | {"data_dir": str(tmp_path)}  # with few test samples
    runs = [TrainOptions(backend=name, **steps) for name in backends]
    runs += [TrainOptions(backend="deepspeed", zero_stage=stage, **steps) for stage in (3, 0, 1) if orders > 1]
    try:
        team = ranks.start(2)
        pids = [about["pid"] for about in team.about()]
        losses = {}
        for options in [*reversed(runs), *runs][: orders * len(runs)]:
            record = team.train(options, timeout=200, show=False)
            losses.setdefault((options.backend, options.zero_stage), []).append(record["epochs"][0]["test_loss"])
        in_bf16 = {
            (options.backend, options.zero_stage): team.train(
                replace(options, precision="bf16"), timeout=200, show=False
            )["epochs"][0]["test_loss"]
            for options in runs
            if options.backend not in ("horovod-tf", "horovod-keras")
        }
        assert [about["pid"] for about in team.about()] == pids
    finally:
        ranks.stop()
    mine = losses[("mpi", None)][0]
    for found in losses.values():
        assert found == pytest.approx([mine] * orders, rel=1e-3)
    for name, loss in in_bf16.items():
        assert 1e-5 < abs(loss / mine - 1) < 0.02, name
