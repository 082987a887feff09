"""Scripts that resume go on from the checkpoint that rank 0 sees, and send none of it; what mesh.py says and clips."""

import re
import runpy
import shutil
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from notebooks.scripts_in_turn import IMAGES, SCRIPTS
from notebooks.test_take_home import TORCHRUN, WITHIN
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from training import ladder
from training.launching import rank_environment, run_bounded

from workshop_lib.training.equivalence import largest_relative_difference

pytestmark = pytest.mark.full

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


def accuracies(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"test accuracy ([\d.]+)%", text)]


def loaded(folder, name: str):
    return torch.load(folder / "saved" / f"{name}.pt", weights_only=True)


def same(one, other) -> bool:
    """Whether two checkpoints hold the same numbers, to the last bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_a_training_that_was_ended_ends_as_if_nothing_had_happened(folder):
    """Its weights and momentum are the same."""
    said = printed(folder, 0)
    assert epochs(said["whole"]) == [1, 2] and epochs(said["same"]) == [2]
    assert same(loaded(folder, "whole"), loaded(folder, "same"))
    assert epochs(said["goes_on"]) == [2] and same(loaded(folder, "rounds"), loaded(folder, "goes_on"))
    assert same(loaded(folder, "alone"), loaded(folder, "lost"))
    assert said["lost"].startswith("step 3\n"), said["lost"]
    digests = [
        re.findall(r"has weights (\w+)", printed(folder, rank)[name]) for rank in (0, 1) for name in ("alone", "lost")
    ]
    assert len({digest for [digest] in digests}) == 1


def test_a_checkpoint_that_rank_0_cannot_see_is_no_checkpoint_on_any_rank(folder):
    """Rank 1 sees one of two epochs, and trains the first one with rank 0 all the same."""
    assert epochs(printed(folder, 0)["behind"]) == [1]
    assert torch.load(folder / "0" / "behind.pt", weights_only=True)["epoch"] == 1


def run_alone(monkeypatch, script: str, *options: object) -> None:
    """Run a script in this process, as the only rank."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(sys, "argv", [script, *map(str, options)])
    monkeypatch.syspath_prepend(SCRIPTS)
    runpy.run_path(str(SCRIPTS / script), run_name="__main__")


def whole(checkpoint: Path, file: Path) -> dict:
    """The weights of a checkpoint in shards."""
    dcp_to_torch_save(checkpoint, file)
    return torch.load(file, weights_only=True)["model"]


def test_fsdp_computes_in_bf16_and_keeps_half_of_the_weights_in_float32(folder):
    assert printed(folder, 0)["bf16"] == "torch.bfloat16 torch.float32 0.5\n"


def test_fsdp_goes_on_with_fewer_ranks_and_the_same_steps(folder, tmp_path, monkeypatch):
    """Two ranks write the checkpoint of the first epoch, and one trains the second, with twice the micro-batches."""
    shutil.copytree(folder / "saved" / "sharded" / "epoch1", tmp_path / "again" / "epoch1")
    options = "--data", folder / "data", "--images", IMAGES, "--epochs", 2, "--accumulate", 2
    run_alone(monkeypatch, "fsdp2.py", *options, "--out", tmp_path / "again")
    both = whole(folder / "saved" / "sharded" / "epoch2", tmp_path / "both.pt")
    one = whole(tmp_path / "again" / "epoch2", tmp_path / "one.pt")
    assert largest_relative_difference(both, one) < 100 * WITHIN
    assert [each.name for each in (tmp_path / "again").iterdir()] == ["epoch2"], "the first one is gone"


@pytest.mark.parametrize("title", ["more", "fewer"])
def test_an_epoch_with_another_number_of_steps_is_trained_at_its_own_learning_rates(folder, title):
    """As after a start on fewer ranks or more, or with more images or fewer."""
    said = printed(folder, 0)[title]
    assert epochs(said) == [2]
    before, _ = accuracies(printed(folder, 0)["whole"])
    [accuracy] = accuracies(said)
    assert accuracy > before + 3, f"{accuracy} % after the second epoch, and {before} % before it"
    state = loaded(folder, title)
    assert state["epoch"] == 2
    assert state["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0, abs=1e-12), "the schedule has ended"


def test_a_training_that_is_done_and_a_file_without_an_epoch_are_sentences(folder):
    said = printed(folder, 0)
    saved = folder / "saved" / "same.pt"
    assert said["done"] == f"{saved} has trained 2 epochs already: give more with --epochs to go on.\n"
    for rank in (0, 1):
        assert "other.pt says no epoch to continue from: delete it" in printed(folder, rank)["other"]


@pytest.fixture
def load(request, monkeypatch):
    """The function `load` of a script, on rank 1 of a world whose rank 0 has found a checkpoint, or hasn't."""

    def loaded(name: str, path: Path, found: bool):
        monkeypatch.syspath_prepend(SCRIPTS)
        load = runpy.run_path(str(SCRIPTS / f"{name}.py"))["load"]
        broadcast = lambda tensor, src: tensor.fill_(found)  # noqa: E731 - all that may be sent
        load.__globals__["dist"] = SimpleNamespace(get_rank=lambda: 1, broadcast=broadcast)
        return load(path, torch.device("cpu"))

    return loaded


@pytest.mark.parametrize("name", ["ddp_resume", "diloco", "elastic"])
def test_ranks_map_a_checkpoint_that_rank_0_has_found_into_their_memory_and_send_none_of_it(
    name, load, tmp_path, monkeypatch
):
    whole = {"epoch": 1, "outer": {}, "model": {"weight": torch.ones(3)}}
    torch.save(whole, tmp_path / "saved.pt")
    mapped = []
    read = torch.load
    monkeypatch.setattr(torch, "load", lambda path, **options: mapped.append(options["mmap"]) or read(path, **options))
    assert same(load(name, tmp_path / "saved.pt", True), whole) and mapped == [True]
    assert load(name, tmp_path / "saved.pt", False) is None
    with pytest.raises(SystemExit, match=r"none\.pt can be read on rank 0, but not on rank 1: put it where"):
        load(name, tmp_path / "none.pt", True)


@pytest.mark.parametrize("name", ["ddp_resume", "diloco"])
def test_the_file_of_another_script_is_a_sentence(name, load, tmp_path):
    torch.save({"model": {}}, tmp_path / "other.pt")
    with pytest.raises(SystemExit, match=r"other\.pt .*: delete it, or give another file with --out\."):
        load(name, tmp_path / "other.pt", True)


def test_a_mesh_that_cannot_be_read_is_a_sentence():
    mesh_shape = runpy.run_path(str(SCRIPTS / "mesh.py"))["mesh_shape"]
    with pytest.raises(SystemExit, match=r"--mesh 2\*2: give two whole numbers"):
        mesh_shape(SimpleNamespace(mesh="2*2"), 4)


def test_a_mesh_takes_all_ranks_or_says_why_not(folder):
    said = printed(folder, 0)
    assert "step 5: loss " in said["mesh"]
    assert said["wrong"] == "--mesh 1x1: 1 times 1 isn't the number of ranks, which is 2.\n"
    assert said["heads"].endswith("--heads 1 among 2: give multiples of 1 and 2.\n")


def test_gradients_on_two_meshes_are_clipped_by_their_common_norm(folder):
    for shape in ("clipped1", "clipped2"):
        before, after = map(float, printed(folder, 0)[shape].split())
        assert before == pytest.approx(3.0, abs=1) and after == pytest.approx(0.5, abs=1e-4)
    assert printed(folder, 0)["clipped1"] == printed(folder, 0)["clipped2"], "on any mesh, the weights start equal"


def test_elastic_takes_each_image_once_per_epoch_and_waits_longest_in_the_first_step(folder, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    script = runpy.run_path(str(SCRIPTS / "elastic.py"), run_name="script")
    for epoch in (0, 1):
        steps = [script["images_of"](4 * epoch + number, 100, 25) for number in range(4)]
        assert torch.cat(steps).sort().values.tolist() == list(range(100))
    assert script["images_of"](3, 100, 25).tolist() != script["images_of"](7, 100, 25).tolist()
    first = []
    join = script["join"]
    monkeypatch.setitem(
        join.__globals__, "dist", SimpleNamespace(init_process_group=lambda *_, timeout, **__: first.append(timeout))
    )
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    join()
    assert first[0].total_seconds() >= 300
    assert printed(folder, 0)["timeouts"] == "0:00:10\n", "after the first step"


@pytest.mark.parametrize("name", ["ddp", "ddp_resume", "fsdp2", "diloco", "zero_deepspeed"])
def test_images_per_second_are_those_of_training_in_every_script(name):
    """scaling_table.py compares them, so none of them may count the time of a test."""
    _, _, loop = (SCRIPTS / f"{name}.py").read_text().partition("for epoch in range")
    assert loop.index("        start = time.perf_counter()") < loop.index(" / (time.perf_counter() - start)")
    assert loop.index(" / (time.perf_counter() - start)") < loop.index("count_right(")
