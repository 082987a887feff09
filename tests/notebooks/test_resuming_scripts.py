"""ddp_resume.py and elastic.py go on from rank 0's checkpoint, whatever other ranks see; what mesh.py says."""

import re
from pathlib import Path

import pytest
import torch
from notebooks.scripts_in_turn import IMAGES
from notebooks.test_take_home import TORCHRUN
from training import ladder
from training.launching import rank_environment, run_bounded

IN_TURN = Path(__file__).with_name("resume_in_turn.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    ladder.write_packed_mnist(folder / "data", 2 * IMAGES, 500)
    [(status, output)] = run_bounded([[*TORCHRUN, IN_TURN, folder]], [rank_environment()], 120)
    assert status == 0, output
    return folder


def printed(folder, rank: int) -> dict[str, str]:
    """What a rank printed, by title."""
    _, *parts = re.split(r"^--- (\w+)\n", (folder / f"{rank}.txt").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def epochs(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"^epoch (\d+):", text, re.MULTILINE)]


def loaded(folder, name: str):
    return torch.load(folder / "0" / f"{name}.pt", weights_only=True)


def same(one, other) -> bool:
    """Whether two checkpoints hold the same numbers, to the last bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_a_checkpoint_that_rank_0_alone_can_see_is_continued_on_every_rank(folder):
    """It ends as if nothing had happened, weights and momentum. Rank 1 has no file, before or after."""
    said = printed(folder, 0)
    assert epochs(said["whole"]) == [1, 2] and epochs(said["same"]) == [2]
    assert same(loaded(folder, "whole"), loaded(folder, "same"))
    assert same(loaded(folder, "alone"), loaded(folder, "lost"))
    assert said["lost"].startswith("step 3\n"), said["lost"]
    digests = [
        re.findall(r"has weights (\w+)", printed(folder, rank)[name]) for rank in (0, 1) for name in ("alone", "lost")
    ]
    assert len({digest for [digest] in digests}) == 1
    assert not list((folder / "1").iterdir())


@pytest.mark.parametrize("title", ["more", "fewer"])
def test_an_epoch_with_another_number_of_steps_is_trained_at_its_own_learning_rates(folder, title):
    """As after a start on fewer ranks or more, or with more images or fewer."""
    said = printed(folder, 0)[title]
    assert epochs(said) == [2]
    assert float(said.rpartition("test accuracy ")[2].rstrip("%\n")) > 70, said
    state = loaded(folder, title)
    assert state["epoch"] == 2
    assert state["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0, abs=1e-12), "the schedule has ended"


def test_a_training_that_is_done_and_a_file_without_an_epoch_are_sentences(folder):
    said = printed(folder, 0)
    assert (
        said["done"] == f"{folder / '0' / 'same.pt'} has trained 2 epochs already: give more with --epochs to go on.\n"
    )
    for rank in (0, 1):
        assert "other.pt says no epoch to continue from: delete it" in printed(folder, rank)["other"]


def test_a_mesh_takes_all_ranks_or_says_why_not(folder):
    said = printed(folder, 0)
    assert "step 5: loss " in said["mesh"]
    assert said["wrong"] == "--mesh 1x1: 1 times 1 isn't the number of ranks, which is 2.\n"
    assert said["heads"].endswith("--heads 1 among 2: give multiples of 1 and 2.\n")
