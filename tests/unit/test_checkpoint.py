"""A checkpoint is written whole or not at all, and refused when it does not fit."""

import subprocess
import sys

import pytest
import torch

from workshop_lib import paths
from workshop_lib.training import checkpoint

OPTIONS = dict.fromkeys(checkpoint.MUST_MATCH, 1)


def state(value):
    return {"must_match": OPTIONS, "model": torch.full((1000,), float(value))}


def test_round_trip(tmp_path):
    path = tmp_path / "new" / "run.pt"
    checkpoint.write(path, state(1))
    checkpoint.write(path, state(2))
    assert checkpoint.read(path, OPTIONS)["model"][0] == 2
    assert [p.name for p in path.parent.iterdir()] == ["run.pt"]


@pytest.mark.parametrize("dies_in", ["fsync", "replace"])
def test_death_while_writing_leaves_the_old_file(tmp_path, dies_in):
    path = tmp_path / "run.pt"
    checkpoint.write(path, state(1))
    code = (
        "import os, signal, sys, torch\n"
        "from workshop_lib.training import checkpoint\n"
        f"os.{dies_in} = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoint.write(sys.argv[1], {'model': torch.zeros(1000)})\n"
    )
    result = subprocess.run([sys.executable, "-c", code, path], timeout=60, cwd=paths.ROOT, check=False)
    assert result.returncode == -9
    assert checkpoint.read(path, OPTIONS)["model"][0] == 1


def test_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(checkpoint.CheckpointError, match="file/run.pt.*--checkpoint"):
        checkpoint.write(tmp_path / "file" / "run.pt", state(1))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "no checkpoint.*--resume"),
        (b"", "not a readable checkpoint"),
        (b"no checkpoint", "not a readable checkpoint"),
        (b"PK\x03\x04 half a zip", "not a readable checkpoint"),
    ],
)
def test_missing_or_damaged(tmp_path, content, complaint):
    path = tmp_path / "run.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match=f"run.pt: {complaint}"):
        checkpoint.read(path, OPTIONS)


def test_files_from_before_label_smoothing_are_without(tmp_path):
    path = tmp_path / "run.pt"
    earlier = {name: value for name, value in OPTIONS.items() if name != "label_smoothing"}
    checkpoint.write(path, state(1) | {"must_match": earlier})
    assert checkpoint.read(path, OPTIONS | {"label_smoothing": 0.0})["model"][0] == 1
    with pytest.raises(checkpoint.CheckpointError, match=r"written with label_smoothing 0.0 \(now 0.1\)"):
        checkpoint.read(path, OPTIONS | {"label_smoothing": 0.1})


def test_other_options(tmp_path):
    path = tmp_path / "run.pt"
    checkpoint.write(path, state(1))
    with pytest.raises(checkpoint.CheckpointError, match=r"written with peak_lr 1 \(now 2\)"):
        checkpoint.read(path, OPTIONS | {"peak_lr": 2})
