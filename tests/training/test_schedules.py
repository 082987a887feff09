"""Learning-rate schedules as functions of the step, and the rates of a run."""

import pytest
import torch

from workshop_lib.machine.world import World
from workshop_lib.training import trainer
from workshop_lib.training.backends.pytorch import TorchBackend
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.schedules import END, lr_at, scale_lr


def test_scaling_and_names_that_are_not_known():
    rates = [scale_lr(0.1, scaling, 4) for scaling in ("none", "sqrt", "linear")]
    assert rates == pytest.approx([0.1, 0.2, 0.4])
    with pytest.raises(ValueError, match="decay 'stairs'"):
        lr_at(0, 10, 0.1, decay="stairs")


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("none", [1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25]),
        ("cosine", [1, 0.853553, 0.5, 0.146447]),
        ("polynomial", [1, 0.5625, 0.25, 0.0625]),
        ("step", [1, 1, 0.1, 0.01]),
        ("exponential", [1, END**0.25, END**0.5, END**0.75]),
        ("inverse", [1, 1 / 25.75, 1 / 50.5, 1 / 75.25]),
    ],
)
def test_decays(decay, expected):
    assert [lr_at(step, 4, 1.0, decay=decay) for step in range(4)] == pytest.approx(expected, rel=1e-5)
    # Still falling, or as it was, and above zero in the last step.
    assert 0 < lr_at(99, 100, 1.0, decay=decay) <= lr_at(98, 100, 1.0, decay=decay)


class RatesOfTheOptimizer(TorchBackend):
    """What the optimizer was told, step by step."""

    def wrap(self, model, make_optimizer):
        forward, self.optimizer = super().wrap(model, make_optimizer)
        self.rates = []
        return forward, self.optimizer

    def average_gradients(self):
        self.rates.append(self.optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(
    ("warmup", "expected"), [("constant", [0.01, 0.01, 0.01]), ("linear", [0.04 / 3, 0.08 / 3, 0.04])]
)
def test_a_run_warms_up_as_it_is_told(small_mnist, warmup, expected):
    """Four workers, whose peak is four times the rate of one: three steps of warm-up and two at the peak."""
    how = {"lr": 0.01, "lr_scaling": "linear", "emulate_workers": 4, "decay": "none", "epochs": 1}
    sizes = {"train_samples": 5 * 4 * 64, "warmup_epochs": 3 / 5, "data_dir": small_mnist}
    backend = RatesOfTheOptimizer(World(), torch.device("cpu"))
    record = trainer.train(TrainOptions(warmup=warmup, **how, **sizes), backend=backend)
    assert backend.rates == pytest.approx([*expected, 0.04, 0.04])
    assert record["epochs"][0]["lr"] == pytest.approx(0.04)
