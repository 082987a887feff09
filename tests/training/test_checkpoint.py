"""A checkpoint is written whole or not at all, and refused when it does not fit."""

import errno
import os
import subprocess
import sys

import pytest
import torch

from workshop_lib import paths
from workshop_lib.training import checkpoint
from workshop_lib.training.options import TrainOptions

OPTIONS = checkpoint.must_match(TrainOptions(lr=1.0), world_size=2, train_size=640, framework="PyTorch")


def state(value):
    return {"must_match": OPTIONS, "model": torch.full((1000,), float(value))}


def test_round_trip(tmp_path):
    path = tmp_path / "new" / "run.pt"
    checkpoint.write(path, state(1))
    checkpoint.write(path, state(2))
    assert checkpoint.read(path, OPTIONS)["model"][0] == 2
    assert torch.load(path)["model"][0] == 2, "as a script without this library reads it"
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


@pytest.mark.parametrize(("place", "why"), [("file/run.pt", "part of the path is a file"), ("", "it is a folder")])
@pytest.mark.parametrize("act", [lambda path: checkpoint.write(path, state(1)), checkpoint.require_place])
def test_a_place_that_cannot_be_written(tmp_path, act, place, why):
    (tmp_path / "file").write_text("")
    with pytest.raises(checkpoint.CheckpointError, match=f"{place}: .*because {why}; .*--checkpoint"):
        act(tmp_path / place)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_named_and_the_old_file_stays(tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    checkpoint.write(path, state(1))

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(checkpoint.CheckpointError, match="run.pt: .*because the disk is full; .*--checkpoint"):
        checkpoint.write(path, state(2))
    assert checkpoint.read(path, OPTIONS)["model"][0] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["run.pt"]


def test_what_is_no_checkpoint_or_a_part_of_one(tmp_path):
    path = tmp_path / "run.pt"
    checkpoint.write(path, state(1))
    whole = path.read_bytes()
    for content in (b"", b"no checkpoint", whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(checkpoint.CheckpointError, match="run.pt: this is not a checkpoint.* or it was damaged"):
            checkpoint.read(path, OPTIONS)
