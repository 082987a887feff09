"""The command line without ranks: what it refuses, what it calls an error, and what it draws."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from record_fixtures import run
from typer.testing import CliRunner

from workshop_lib import cli
from workshop_lib.cli import commands, doctor
from workshop_lib.paths import ROOT
from workshop_lib.scaling import records
from workshop_lib.training import record
from workshop_lib.training.backends.pytorch import TorchBackend
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.world import World

ALONE = TorchBackend(World(0, 1, 0, "single"), torch.device("cpu"))


def invoke(*arguments):
    return CliRunner().invoke(cli.app, list(map(str, arguments)))


@pytest.mark.parametrize("option", [("--threads", "4"), ("--bind", "core"), ("--timeout", "60")])
def test_options_of_ranks_are_refused_without_ranks(option):
    ended = invoke("train", "--max-steps", 1, *option)
    assert ended.exit_code == 1
    assert ended.output.startswith(f"workshop: {option[0]}") and "--ranks N" in ended.output


@pytest.fixture
def doctor_raises(monkeypatch):
    """Makes `workshop doctor` call an action that fails."""
    return lambda action, *arguments: monkeypatch.setattr(doctor, "main", lambda _: action(*arguments))


@pytest.mark.parametrize(
    ("action", "arguments", "word"),
    [
        (record.check_identical, (["a", "b"],), "rank 1"),
        (record.over_ranks, ("test", np.array([0.0, 0.0, 9.0]), 10, ALONE), "9 test samples"),
        (records.read, ("/nonexistent",), "/nonexistent"),
        (open, ("/nonexistent",), "/nonexistent"),
    ],
)
def test_what_a_user_can_put_right_is_a_sentence(doctor_raises, action, arguments, word):
    doctor_raises(action, *arguments)
    ended = invoke("doctor")
    assert ended.exit_code == 1
    assert ended.output.startswith("workshop: ") and word in ended.output


@pytest.mark.parametrize(
    ("action", "arguments"), [(np.add, (np.zeros(2), np.zeros(3))), (torch.add, (torch.zeros(2), torch.zeros(3)))]
)
def test_what_torch_or_numpy_raise_keeps_its_traceback(doctor_raises, action, arguments):
    doctor_raises(action, *arguments)
    ended = invoke("doctor")
    assert isinstance(ended.exception, ValueError | RuntimeError)
    assert not isinstance(ended.exception, SystemExit) and "workshop: " not in ended.output


def test_each_option_of_a_training_is_on_the_command_line_with_its_default(monkeypatch):
    chosen = []
    monkeypatch.setattr(commands, "_train_as_one_rank", lambda options, out: chosen.append(options))
    assert invoke("train").exit_code == 0
    values = {
        "backend": "deepspeed",
        "zero_stage": 1,
        "network": "classic",
        "precision": "bf16",
        "epochs": 3,
        "batch_size": 8,
        "lr": 0.5,
        "lr_scaling": "sqrt",
        "warmup": "constant",
        "warmup_epochs": 0.25,
        "decay": "step",
        "optimizer": "sgd",
        "momentum": 0.5,
        "label_smoothing": 0.05,
        "device": "cpu",
        "seed": 7,
        "data_dir": "/d",
        "checkpoint": "/c",
        "max_steps": 9,
        "train_samples": 99,
        "emulate_workers": 4,
    }
    typed = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", value)]
    assert invoke("train", *typed, "--resume", "--no-nesterov").exit_code == 0
    every = TrainOptions(**values, resume=True, nesterov=False)
    assert chosen == [TrainOptions(), every]
    assert set(every.as_dict()) == set(values) | {"resume", "nesterov"}


def test_a_wrong_option_is_refused_before_anything_slow_is_imported():
    code = (
        "import sys; from workshop_lib.cli import app\n"
        "try: app(['train', '--epochs', '0'])\n"
        "except SystemExit as ended: print(ended.code, *{'torch', 'numpy', 'mpi4py', 'pandas'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["1"] and ran.stderr.startswith("workshop: epochs 0")


@pytest.mark.parametrize(
    ("ranks", "learning_rates", "drawn", "said"),
    [
        ((1, 2), (0.1, 0.1), ["accuracy.png", "scaling.png"], ""),
        ((2, 4), (0.1, 0.1), ["accuracy.png"], "no scaling curve: no 1-rank run of mpi"),
        ((1, 2), (0.1, 0.4), [], "no accuracy curve: these records mix runs with lr = 0.1 and 0.4"),
    ],
)
def test_each_figure_is_drawn_if_it_can_be(tmp_path, ranks, learning_rates, drawn, said):
    for n, lr in zip(ranks, learning_rates, strict=True):
        made = run("mpi", n)
        made["what"]["lr"] = lr
        records.write(tmp_path / "runs.jsonl", made)
    ended = invoke("plot", tmp_path / "runs.jsonl", "--out-dir", tmp_path / "figures")
    assert said in ended.output
    assert ended.exit_code == (0 if drawn else 1)
    assert sorted(path.name for path in (tmp_path / "figures").glob("*")) == drawn
