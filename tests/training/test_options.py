"""Wrong options are refused before anything starts, with value and remedy; what precision and network do."""

import pytest
import torch

from workshop_lib.errors import InputError
from workshop_lib.machine.world import World
from workshop_lib.training import backends, optimizers, trainer
from workshop_lib.training.backends.pytorch import TorchBackend
from workshop_lib.training.models import torch_cnn
from workshop_lib.training.models.dropout import Dropout
from workshop_lib.training.options import TrainOptions


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"backend": "nccl"}, r"backend 'nccl': use one of .*mpi"),
        ({"epochs": 0}, "epochs 0: use a whole number of at least 1"),
        ({"batch_size": 2.5}, "batch_size 2.5: use a whole number"),
        ({"lr": 0}, "lr 0: use a number above 0"),
        ({"lr": float("nan")}, "lr nan"),
        ({"optimizer": "lars", "backend": "horovod-tf"}, "optimizer 'lars': horovod-tf has sgd and adam"),
        ({"optimizer": "lamb", "backend": "deepspeed"}, "optimizer 'lamb': it needs the norm of each layer"),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum 0.5: adam has its own"),
        ({"optimizer": "lars", "nesterov": False}, "nesterov False: lars has no such choice"),
        ({"momentum": 1.0}, "momentum 1.0: use a number of at least 0 and below 1"),
        ({"optimizer": "muon", "backend": "fsdp"}, "optimizer 'muon': it needs whole matrices"),
        ({"network": "vit", "backend": "horovod-tf"}, "network 'vit': horovod-tf has no transformer here"),
        ({"comm": "mpi", "backend": "deepspeed"}, "comm 'mpi': only for ddp, .*, not for deepspeed; leave"),
        ({"precision": "bf16", "backend": "horovod-tf"}, "horovod-tf computes in fp32"),
        ({"zero_stage": 1}, "zero_stage 1: only deepspeed has stages, not mpi"),
        ({"device": "xpu", "backend": "horovod"}, "device 'xpu': horovod doesn't train on Intel's GPUs here"),
        ({"nesterov": "no"}, "nesterov 'no': use True or False"),
        ({"epochs": None}, "epochs None: use a whole number"),
        ({"seed": True}, "seed True: use a whole number"),
        ({"resume": True}, "resume needs a checkpoint"),
    ],
)
def test_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        TrainOptions(**wrong)


def test_the_record_names_the_stage_that_runs():
    assert TrainOptions(backend="deepspeed").as_dict()["zero_stage"] == 2
    assert TrainOptions(backend="deepspeed", zero_stage=0).as_dict()["zero_stage"] == 0
    assert TrainOptions(backend="ddp").as_dict()["zero_stage"] is None


@pytest.mark.parametrize(("workers", "ranks", "batch"), [(None, 3, 192), (8, 2, 512), (1, 2, 64)])
def test_global_batch(workers, ranks, batch):
    assert TrainOptions(emulate_workers=workers).global_batch(ranks) == batch


def test_workers_that_cannot_be_shared_are_refused():
    with pytest.raises(ValueError, match="emulate_workers 3: use a multiple or a part of the 2 ranks"):
        TrainOptions(emulate_workers=3).global_batch(2)
    with pytest.raises(ValueError, match="global batch 3: use a batch_size that 2 ranks can share"):
        TrainOptions(emulate_workers=1, batch_size=3).global_batch(2)


def outputs_of_layers(model, forward):
    """What each layer with weights gives for three images, and what `forward` gives."""
    found = []
    for layer in model:
        if list(layer.parameters()):
            layer.register_forward_hook(lambda *called: found.append(called[2]))
    return found, forward(torch.zeros(3, 1, 28, 28))


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_layers_compute_in_the_precision_and_all_else_is_fp32(precision, dtype):
    options = TrainOptions(precision=precision)
    model = torch_cnn.build(1)
    backend = TorchBackend(World(), torch.device("cpu"))
    forward, optimizer = backend.prepare(model, optimizers.maker(options), options)
    found, logits = outputs_of_layers(model, forward)
    assert [output.dtype for output in found] == [dtype] * 3
    torch.nn.functional.cross_entropy(logits, torch.tensor([1, 2, 3])).backward()
    optimizer.step()
    of_steps = [value.dtype for state in optimizer.state.values() for value in state.values()]
    of_weights = [kept.dtype for p in model.parameters() for kept in (p, p.grad)]
    assert {logits.dtype, *of_weights, *of_steps} == {torch.float32}


def test_smoothed_targets_change_the_weights_and_not_the_meaning_of_the_loss(small_mnist):
    few = {"train_samples": 64, "epochs": 1, "data_dir": small_mnist}
    runs = [trainer.train(TrainOptions(label_smoothing=smoothing, **few)) for smoothing in (0.0, 0.2)]
    plain, smoothed = (run["epochs"][0] for run in runs)
    assert plain["train_loss"] == smoothed["train_loss"]  # of one step, from the same weights
    assert runs[0]["weights_sha256"] != runs[1]["weights_sha256"]


def test_the_classic_network_has_the_published_layers():
    """Of PyTorch's example: two convolutions of 5 x 5 with 10 and 20 channels, and layers of 50 and 10."""
    model = torch_cnn.build(1, "classic").eval()
    found, logits = outputs_of_layers(model, model)
    assert [tuple(output.shape[1:]) for output in found] == [(10, 24, 24), (20, 8, 8), (50,), (10,)]
    assert [tuple(p.shape) for p in model.parameters() if p.dim() > 1] == [
        (10, 1, 5, 5),
        (20, 10, 5, 5),
        (50, 320),
        (10, 50),
    ]
    assert logits.shape == (3, 10)
    assert sum(isinstance(layer, Dropout) for layer in model) == 2


def test_a_backend_whose_extra_is_missing_says_what_the_set_up_knows_of_it(monkeypatch):
    """It's the first cell of notebooks 03, 04 and 06b that says it."""
    monkeypatch.setattr(backends, "missing", lambda name, comm="auto": ["horovod"])
    monkeypatch.setattr(backends.installation, "why_missing", lambda extra: f"{extra} is still being installed")
    with pytest.raises(InputError, match="^horovod is still being installed$"):
        backends.require("horovod-tf")
    monkeypatch.setattr(backends.installation, "why_missing", lambda extra: "")
    with pytest.raises(InputError, match="horovod needs horovod: run `make setup HOROVOD=`"):
        backends.require("horovod")
