"""elastic.py and survive.py: lost ranks change nothing in the weights, and any number of ranks can go on."""

import runpy

import pytest
import torch
from training.ladder import write_packed_mnist

from workshop_lib.paths import MNIST, SCRIPTS
from workshop_lib.ranks.launch import scripts

from lessons.runs_that_survive import fault_injection
from lessons.runs_that_survive.fake_ranks import FakeRanks

pytestmark = pytest.mark.full

IMAGES = 1000


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The first images of MNIST."""
    write_packed_mnist(folder := tmp_path_factory.mktemp("mnist"), IMAGES)
    return folder


def test_a_training_that_loses_ranks_ends_with_the_same_weights(data, nothing_left):
    options = ["--data", data, "--batch", 48, "--steps", 24]
    score = fault_injection.score(
        [SCRIPTS / "survive.py", 2, SCRIPTS / "elastic.py", *options], every=6, show=lambda line: None
    )
    assert score.same_weights and score.free.ranks == 2
    assert len(score.faulty.faults) == 4 and score.faulty.starts == 1, "only ranks were started again"


@pytest.mark.exhaustive
def test_fewer_ranks_go_on_with_the_same_global_batch(data, tmp_path):
    def train(ranks, steps, out):
        options = ["--data", data, "--batch", 50, "--steps", steps, "--out", tmp_path / out]
        scripts.run("python", SCRIPTS / "survive.py", ranks, SCRIPTS / "elastic.py", *options)
        weights, _, done = torch.load(tmp_path / out, weights_only=True)
        assert done == steps
        return torch.cat([value.flatten() for value in weights.values()])

    train(3, 4, "fewer.pt")
    fewer, alone = train(2, 8, "fewer.pt"), train(1, 8, "alone.pt")
    # Rounding can change which of two nearly equal pixels a pooling layer takes, so the weights differ by up to 4e-4 of
    # the largest one. If all ranks counted alike, whatever their shares, they would differ by 5e-2.
    assert (fewer - alone).abs().max() < 2e-3 * alone.abs().max()


@pytest.mark.exhaustive
def test_torchrun_starts_the_same_script_again(data):
    torchrun = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "torchrun", "--standalone", "--local-addr", "127.0.0.1"]
    command = [*torchrun, "--nproc-per-node", 2, "--max-restarts", 9, SCRIPTS / "elastic.py"]
    options = ["--data", data, "--batch", 48, "--steps", 12]
    score = fault_injection.score([*command, *options], every=5, kinds=["kill"], show=lambda line: None)
    assert score.same_weights and len(score.faulty.faults) == 2 and score.faulty.starts == 1


@pytest.fixture
def per_step(monkeypatch):
    """The functions of per_step.py."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return runpy.run_path(str(SCRIPTS / "per_step.py"), run_name="script")


def supervised(per_step, scene, restarts):
    """The fake ranks of a scene after per_step.py has supervised them."""

    def supervise(start, ranks, _):
        per_step["supervise"](lambda rank: start(rank, 0), ranks, restarts)

    return FakeRanks(scene).run(supervise)


def test_per_step_starts_only_the_lost_rank_again_and_ends_with_the_first_that_is_done(per_step, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    seen = supervised(per_step, [["waits", "dies"], ["waits", "stops"], ["waits", "ends"]], restarts=9)
    assert [rank for _, rank in seen.starts] == [0, 1, 1, 1] and seen.end == "returned" and not seen.left


def test_per_step_gives_up_if_a_rank_is_lost_again_and_again(per_step):
    assert supervised(per_step, [["raises"]], restarts=2).end.endswith("given up: too many ranks were lost")


def test_per_step_says_what_it_needs(per_step, monkeypatch):
    monkeypatch.setitem(per_step["main"].__globals__, "torchft", None)
    monkeypatch.setattr("sys.argv", ["per_step.py", "2", "--data", str(MNIST)])
    with pytest.raises(SystemExit, match="pip install torchft"):
        per_step["main"]()
