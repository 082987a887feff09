"""What a run says of itself: its speed, whether it was cut short, and a loss that is no number."""

import json
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from needs import needs

from workshop_lib.data import mnist
from workshop_lib.machine.world import World
from workshop_lib.ranks.progress import epoch_line
from workshop_lib.training import diverged, record, trainer
from workshop_lib.training.checkpoint import CheckpointError
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.record import RunError


@pytest.fixture
def train(small_mnist):
    """Trains as one process; the last batch of an epoch has `ragged` samples less."""

    def run(steps, callbacks=(), ragged=0, **options):
        options = {"epochs": 1, "train_samples": 64 * steps - ragged, "data_dir": small_mnist} | options
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
    def __init__(self, stop_at=None):
        self.speeds, self.stop_at = [], stop_at

    def on_step(self, event):
        self.speeds.append(event["samples_per_s"])

    def should_stop(self):
        return self.stop_at is not None and len(self.speeds) >= self.stop_at


def test_the_speed_shown_at_an_epoch_s_end_does_not_suffer_from_its_smaller_batch(train):
    seen = Watch()
    (row,) = train(12, [seen], ragged=63)["epochs"]
    assert seen.speeds[-1] == pytest.approx(row["samples_per_s"], rel=0.2)


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


def test_a_nan_is_a_nan_in_the_checksum_of_the_weights():
    bits = (0x7FC00000, 0xFFC00001, 0x3F800000)
    nan, other_nan, one = (record.weights_sha256([np.array([b], np.uint32).view(np.float32)]) for b in bits)
    assert nan == other_nan != one


@pytest.mark.parametrize(
    ("affinities", "quota", "cores"), [([[0], [1]], 9, 2), ([[0, 1, 2, 3]] * 2, 4, 4), ([[0, 1, 2, 3]] * 2, 2, 2)]
)
def test_the_cores_of_a_run_are_those_of_all_its_ranks_on_a_host(affinities, quota, cores):
    ranks = [
        {"host": host, "affinity": own, "cores": own, "host_cores": 4, "quota": quota, "threads": 1, "gpu": None}
        | {"neutralized": []}
        for own, host in zip([*affinities, [7]], ["here", "here", "elsewhere"], strict=True)
    ]
    backend = SimpleNamespace(name="mpi", transport=None, world=World(0, 3, 0, "single"), device=torch.device("cpu"))
    backend.allgather = lambda own: ranks if isinstance(own, dict) else [own]
    assert record.start(TrainOptions(), backend)["where"]["cores"] == cores


class TwoRanks:
    """The communicator of two threads."""

    def __init__(self):
        self.barrier = threading.Barrier(2, timeout=10)
        self.values = {}

    def on(self, rank):
        def allgather(value):
            self.values[rank] = value
            self.barrier.wait()
            gathered = [self.values[0], self.values[1]]
            self.barrier.wait()
            return gathered

        return SimpleNamespace(world=World(rank, 2, rank, "single"), backend=SimpleNamespace(allgather=allgather))


def fails(error):
    raise error


@pytest.mark.parametrize(
    ("action", "argument", "outcomes"),
    [
        (abs, -3, [3, 3]),
        (fails, CheckpointError("no file"), [CheckpointError("no file")] * 2),
        (
            fails,
            OverflowError("full"),
            [OverflowError("full"), RunError("rank 0 could not go on: OverflowError: full")],
        ),
    ],
)
def test_all_ranks_learn_what_became_of_an_action_on_rank_0(action, argument, outcomes):
    ranks = TwoRanks()

    def outcome(rank):
        try:
            return trainer.Trainer.on_rank_0(ranks.on(rank), action, argument)
        except Exception as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(outcome, range(2)))
    assert [repr(each) for each in found] == [repr(each) for each in outcomes]
