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
        ({"decay": "stairs"}, "decay 'stairs'"),
        ({"optimizer": "lion"}, "optimizer 'lion': use sgd, adam, lars"),
        ({"optimizer": "lars", "backend": "horovod-tf"}, "optimizer 'lars': horovod-tf has sgd and adam"),
        ({"optimizer": "lamb", "backend": "deepspeed"}, "optimizer 'lamb': it needs the norm of each layer"),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum 0.5: adam has its own"),
        ({"optimizer": "lars", "nesterov": False}, "nesterov False: lars has none"),
        ({"momentum": 1.0}, "momentum 1.0: use a number below 1"),
        ({"momentum": -0.1}, "momentum -0.1: use 0 or a number above 0"),
        ({"warmup": "sudden"}, "warmup 'sudden': use linear or constant"),
        ({"network": "resnet"}, "network 'resnet': use workshop or classic"),
        ({"network": "classic", "backend": "horovod-keras"}, "network 'classic': horovod-keras has one"),
        ({"emulate_workers": 0}, "emulate_workers 0: use a whole number"),
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


@pytest.mark.parametrize(("workers", "ranks", "batch"), [(None, 3, 192), (8, 2, 512), (1, 2, 64)])
def test_global_batch(workers, ranks, batch):
    assert TrainOptions(emulate_workers=workers).global_batch(ranks) == batch


def test_workers_that_cannot_be_shared_are_refused():
    with pytest.raises(ValueError, match="emulate_workers 3: use a multiple or a part of the 2 ranks"):
        TrainOptions(emulate_workers=3).global_batch(2)
    with pytest.raises(ValueError, match="global batch 3: use a batch_size that 2 ranks can share"):
        TrainOptions(emulate_workers=1, batch_size=3).global_batch(2)
