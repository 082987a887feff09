"""Scripts to take home with a network that drops units and normalizes batches, as mnist_data.py's doesn't."""

import json
import signal

import pytest
import torch
from needs import needs
from notebooks.scripts_in_turn import IMAGES
from notebooks.test_resuming_scripts import same
from notebooks.test_take_home import TORCHRUN, launcher
from training import ladder
from training.launching import rank_environment, run_bounded

from notebooks import noise_in_turn
from workshop_lib.training.backends import available

pytestmark = pytest.mark.full

NAMES = ["ddp", "ddp_resume", "fsdp2", "diloco", *(["zero_deepspeed"] if "deepspeed" in available() else [])]
# Two ranks share these images as 501 and 500, so that only one of them has a second batch of 500.
TESTED = 1001


def trained(folder, command: list, names: list[str]):
    ladder.write_packed_mnist(folder / "data", IMAGES, TESTED)
    [(status, output)] = run_bounded([[*command, noise_in_turn.__file__, folder, *names]], [rank_environment()], 150)
    assert status == 0, output
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("noise"), TORCHRUN, NAMES)


def seen_by_ranks(folder, name: str) -> tuple[dict, dict]:
    first, second = (json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in (0, 1))
    return first, second


@pytest.mark.parametrize("name", NAMES)
def test_ranks_draw_noise_of_their_own_and_test_with_the_same_statistics(folder, name):
    first, second = seen_by_ranks(folder, name)
    assert first["dropped"] and first["dropped"] != second["dropped"]
    assert first["tested with"] and first["tested with"] == second["tested with"]


@pytest.mark.parametrize("name", [name for name in NAMES if name in ("fsdp2", "zero_deepspeed")])
def test_ranks_that_gather_weights_test_as_many_batches(folder, name):
    first, second = seen_by_ranks(folder, name)
    assert first["batches tested"] == second["batches tested"] == 2


def test_a_training_that_was_ended_within_an_epoch_goes_on_with_the_same_images_and_noise(folder):
    whole, again = (torch.load(folder / f"ddp_resume{of}.pt", weights_only=True) for of in ("", "-again"))
    assert whole["epoch"] == 1 and same(whole, again)


def test_ranks_end_after_the_same_step_if_one_of_them_is_told_to(folder):
    for seen in seen_by_ranks(folder, "ddp_resume"):
        assert seen["ended with"] == 128 + signal.SIGTERM
    saved = torch.load(folder / "ddp_resume-told.pt", weights_only=True)
    assert (saved["epoch"], saved["images"]) == (0, 10 * 2 * 64), "after ten steps, they ask each other"


@needs("horovod")
def test_horovods_ranks_draw_noise_of_their_own_and_test_with_the_same_statistics(tmp_path):
    first, second = seen_by_ranks(trained(tmp_path, launcher("horovod_torch"), ["horovod_torch"]), "horovod_torch")
    assert first["dropped"] and first["dropped"] != second["dropped"]
    assert first["tested with"] and first["tested with"] == second["tested with"]
