"""Training with a schedule and an optimizer of one's own is the library's training."""

import pytest
import torch

from workshop_lib.training.options import TrainOptions
from workshop_lib.training.record import weights_sha256

from lessons.large_batch import own_training

SAMPLES = 700  # three steps of four workers, the last of which is smaller


@pytest.mark.parametrize("momentum", [own_training.MOMENTUM, 0.9])
def test_it_is_the_library_s_training_but_for_rate_and_optimizer(team, momentum):
    options = {"network": "classic", "emulate_workers": 4, "epochs": 1, "train_samples": SAMPLES, "nesterov": False}
    options |= {"lr": 0.06, "warmup_epochs": 1.0, "decay": "none", "momentum": momentum}

    def own() -> str:
        def make(parameters):
            return torch.optim.SGD(parameters, momentum=momentum)

        make_own = None if momentum == own_training.MOMENTUM else make
        optimizer, accuracy = own_training.train(lambda step: 0.02 * (step + 1), 4, 1, SAMPLES, make_own, show=False)
        return weights_sha256([each.detach().numpy() for each in optimizer.param_groups[0]["params"]]), accuracy

    record = team.train(TrainOptions(**options), show=False)
    accuracy = record["epochs"][-1]["test_accuracy"]
    assert team.run(own, show=False) == [(digest, accuracy) for digest in record["weights_sha256"]]


def test_an_epoch_s_last_step_may_be_smaller():
    assert own_training.steps_per_epoch(60_000, 128) == 8
