"""Wrong options are refused before anything starts, with value and remedy."""

import pytest

from workshop_lib.training.options import TrainOptions


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"backend": "nccl"}, r"backend 'nccl': use .*mpi"),
        ({"epochs": 0}, "epochs 0: use a whole number, 1 or more"),
        ({"batch_size": 2.5}, "batch_size 2.5: use a whole number"),
        ({"lr": 0}, "lr 0: use a number above 0"),
        ({"lr": float("nan")}, "lr nan"),
        ({"warmup_epochs": -1}, "warmup_epochs -1: use 0 or a number above 0"),
        ({"lr_scaling": "cubic"}, "lr_scaling 'cubic': use none, sqrt or linear"),
        ({"decay": "step"}, "decay 'step'"),
        ({"optimizer": "lion"}, "optimizer 'lion': use sgd or adam"),
        ({"device": "tpu"}, "device 'tpu'"),
        ({"seed": -1}, "seed -1"),
        ({"max_steps": 0}, "max_steps 0"),
        ({"train_samples": 0}, "train_samples 0"),
        ({"precision": "fp8"}, "precision 'fp8': use fp32 or bf16"),
        ({"precision": "bf16", "backend": "horovod-tf"}, "horovod-tf computes in fp32"),
        ({"backend": "deepspeed", "zero_stage": 4}, "zero_stage 4: use 0, 1, 2 or 3"),
        ({"zero_stage": 1}, "zero_stage 1: only deepspeed has stages, not mpi"),
        ({"resume": True}, "resume needs a checkpoint"),
    ],
)
def test_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        TrainOptions(**wrong)


def test_the_record_names_the_stage_that_runs():
    assert TrainOptions(backend="deepspeed").as_dict()["zero_stage"] == 2
    assert TrainOptions(backend="deepspeed", zero_stage=0).as_dict()["zero_stage"] == 0
    assert TrainOptions(backend="ddp").as_dict()["zero_stage"] is None


def test_defaults_are_valid():
    assert TrainOptions().as_dict()["backend"] == "mpi"
