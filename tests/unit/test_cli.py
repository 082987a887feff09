"""The command line without ranks: what it refuses, what it calls an error, and what it draws."""

import numpy as np
import pytest
import torch
import typer
from record_fixtures import run
from typer.testing import CliRunner

from workshop_lib import cli
from workshop_lib.scaling import records
from workshop_lib.training import record
from workshop_lib.training.backends import pytorch
from workshop_lib.training.backends.pytorch import TorchBackend
from workshop_lib.training.world import World

ALONE = TorchBackend(World(0, 1, 0, "single"), torch.device("cpu"))


def invoke(*arguments):
    return CliRunner().invoke(cli.app, list(map(str, arguments)))


@pytest.mark.parametrize("option", [("--threads", "4"), ("--bind", "core"), ("--timeout", "60")])
def test_options_of_ranks_are_refused_without_ranks(option):
    ended = invoke("train", "--max-steps", 1, *option)
    assert ended.exit_code == 2
    assert ended.output.startswith(f"workshop: {option[0]}") and "--ranks N" in ended.output


def raises(action, *arguments):
    with cli._clear_errors():
        action(*arguments)


def test_what_the_library_raises_is_a_sentence(capsys):
    for action, arguments, word in (
        (record.check_identical, (["a", "b"],), "rank 1"),
        (record.over_ranks, ("test", np.array([0.0, 0.0, 9.0]), 10, ALONE), "9 test samples"),
        (records.read, ("/nonexistent",), "/nonexistent"),
        (open, ("/nonexistent",), "/nonexistent"),
    ):
        with pytest.raises(typer.Exit):
            raises(action, *arguments)
        shown = capsys.readouterr().err
        assert shown.startswith("workshop: ") and word in shown


def test_what_torch_or_numpy_raise_keeps_its_traceback():
    with pytest.raises(ValueError, match="broadcast"):
        raises(np.add, np.zeros(2), np.zeros(3))
    with pytest.raises(RuntimeError):  # raised by torch, with the frame of our own line
        raises(pytorch.metric_sums, torch.zeros(()), torch.zeros(2, 10), torch.zeros(3))


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
