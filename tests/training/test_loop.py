"""What a run says of itself: whether it was cut short, a loss that is no number, and what failed on a rank."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from needs import needs
from thread_ranks import run_on_threads

from workshop_lib.machine.world import World
from workshop_lib.training import diverged, record, trainer
from workshop_lib.training.checkpoint import CheckpointError
from workshop_lib.training.data import mnist
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.progress import epoch_line
from workshop_lib.training.record import RunError


@pytest.fixture
def train(small_mnist):
    """Trains as one process."""

    def run(steps, callbacks=(), **options):
        options = {"epochs": 1, "train_samples": 64 * steps, "data_dir": small_mnist} | options
        return trainer.train(TrainOptions(**options), callbacks)

    return run


def test_a_run_that_diverges_ends_with_a_record_that_json_can_hold(train):
    (row,) = train(20, lr=100.0, warmup_epochs=0.0)["epochs"]
    assert row["train_loss"] is None and row["test_loss"] is None
    assert 0 <= row["test_accuracy"] <= 1
    json.dumps(row, allow_nan=False)


def test_an_epoch_holds_how_long_its_averaging_took(train):
    (row,) = train(12)["epochs"]
    assert 0 < row["communication_s"] < row["seconds"]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ((None, 2.3), True),
        ((0.5, None), True),
        ((9e31, 2.42), True),
        ((2.31, 2.31), False),  # it learns nothing, and stays where it is
        ((40.0, 0.3), False),  # it began badly and got over it
    ],
)
def test_what_is_called_divergence(losses, expected):
    row = dict(zip(("train_loss", "test_loss"), losses, strict=True))
    assert diverged(row) is expected
    row |= {"epoch": 1, "test_accuracy": 0.1, "seconds": 1.0, "samples_per_s": 1.0}
    assert ("has diverged" in epoch_line(row)) is expected


@pytest.mark.parametrize("network", ["workshop", "classic"])
def test_the_network_has_as_many_outputs_as_the_data_has_classes(train, small_mnist, tmp_path, network):
    """As EMNIST has, with its 47."""
    for split, (images, labels) in mnist.FILES.items():
        shutil.copy(Path(small_mnist) / images, tmp_path / images)
        content = bytearray((Path(small_mnist) / labels).read_bytes())
        content[8] = 46 if split == "test" else 40
        (tmp_path / labels).write_bytes(content)
    ended = train(2, data_dir=str(tmp_path), network=network, checkpoint=str(tmp_path / "c.pt"))
    assert ended["ranks_identical"]
    assert len(list(torch.load(tmp_path / "c.pt")["model"].values())[-1]) == 47


class Watch:
    def __init__(self, stop_at):
        self.steps, self.stop_at = 0, stop_at

    def on_step(self, event):
        self.steps += 1

    def should_stop(self):
        return self.steps >= self.stop_at


@pytest.mark.parametrize(
    ("stop_at", "options", "stopped", "epochs"),
    [(8, {}, True, 0), (10, {"epochs": 2}, True, 1), (10, {}, False, 1), (8, {"max_steps": 8}, False, 1)],
)
def test_a_run_that_was_stopped_at_its_end_is_complete(train, stop_at, options, stopped, epochs):
    ended = train(10, [Watch(stop_at)], **options)
    assert (ended["stopped"], len(ended["epochs"])) == (stopped, epochs)


@needs("git")
def test_the_commit_is_known_in_another_account_s_checkout(monkeypatch):
    """There, git says nothing unless it's told to."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert re.fullmatch("[0-9a-f]{7,}", record.commit_here() or "")


@needs("git")
def test_an_unpacked_archive_has_no_commit_even_inside_another_repository(monkeypatch):
    monkeypatch.setattr(record.paths, "ROOT", Path(__file__).parent)
    assert record.commit_here() is None


def test_a_nan_is_a_nan_in_the_checksum_of_the_weights():
    bits = (0x7FC00000, 0xFFC00001, 0x3F800000)
    nan, other_nan, one = (record.weights_sha256([np.array([b], np.uint32).view(np.float32)]) for b in bits)
    assert nan == other_nan != one


class OnThreads(trainer.Trainer):
    """A trainer whose backend is the communicator of a thread."""

    def __init__(self, comm):
        self.world = World(comm.rank, comm.size)
        self.backend = comm


@pytest.mark.parametrize(
    ("failing", "error", "told"),
    [
        (0, CheckpointError("no file"), CheckpointError("no file")),
        (0, OverflowError("full"), RunError("rank 0 could not go on: OverflowError: full")),
        (1, CheckpointError("no file"), RunError("rank 1 could not go on: CheckpointError: no file")),
    ],
)
def test_all_ranks_learn_that_an_action_failed_on_one(failing, error, told):
    def outcome(comm):
        def act():
            if comm.rank == failing:
                raise error

        with pytest.raises(Exception) as raised:  # noqa: PT011
            OnThreads(comm).all_succeed(act)
        return repr(raised.value)

    found = run_on_threads(outcome, 2)
    assert (found[failing], found[1 - failing]) == (repr(error), repr(told))
