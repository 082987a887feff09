"""DDP with compressed gradients on real ranks: what is sent, what is kept, and how many bytes."""

import json
import math
from pathlib import Path

import pytest
from ranks.launching import run_script

from workshop_lib.comm import compression

SCRIPT = Path(__file__).with_name("compression_runs.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """{case: [what each rank found]}, on three ranks, with which no mean can be taken for a half."""
    file = tmp_path_factory.mktemp("compression") / "found.json"
    run_script(3, SCRIPT, file, timeout_s=60)
    return json.loads(file.read_text())


def test_all_entries_sent_is_plain_averaging(found):
    assert max(found["everything sent"]) < 1e-6


def test_what_is_sent_and_what_is_kept_is_what_there_was(found):
    for equal, largest in found["one step"]:
        assert equal == [True] * 4
        assert largest == [True] * 4


def test_with_feedback_nothing_is_lost_over_many_steps(found):
    for of_rank in found["feedback"]:
        assert of_rank["difference"] < 1e-6
        assert of_rank["kept"] > 0.05, "else there was nothing to keep"
    for of_rank in found["no feedback"]:
        assert of_rank["difference"] > 0.05, "without it, something is"
        assert of_rank["kept"] == 0


def test_the_bytes_are_counted(found):
    shapes = found["shapes"][0]
    n = sum(math.prod(shape) for shape in shapes)
    thin = [shape for shape in shapes if len(shape) == 2 and 2 * sum(shape) < math.prod(shape)]
    assert len(thin) == 3, "every matrix is worth compressing"
    rest = n - sum(math.prod(shape) for shape in thin)
    expected = {
        "fp32": (4 * n, 1),
        "fp16": (2 * n, 1),
        "bf16": (2 * n, 1),
        "PowerSGD, rank 2": (4 * (rest + sum(2 * sum(shape) for shape in thin)), 3),
        "top 1 %": (8 * round(0.01 * n), 1),
        "top 1 %, no feedback": (8 * round(0.01 * n), 1),
    }
    assert expected.keys() == compression.WAYS.keys()
    for of_rank in found["trained"]:
        for name, (count, messages) in expected.items():
            assert (of_rank[name]["bytes"], of_rank[name]["messages"]) == (count, messages), name


def test_the_ranks_stay_equal_and_train(found):
    for of_rank in found["trained"]:
        assert all(way["same"] for way in of_rank.values())
        assert all(way["moved"] > 1e-3 for way in of_rank.values())


def test_with_feedback_a_fiftieth_of_the_bytes_trains_as_well(found):
    for of_rank in found["on MNIST"]:
        assert of_rank["top 1 %"] > of_rank["fp32"] - 0.04
        assert of_rank["top 1 %, no feedback"] < of_rank["top 1 %"] - 0.05


def test_the_counter_takes_nothing_away(found):
    assert found["untouched"] == [True] * len(found["untouched"])


@pytest.mark.parametrize("share", [0, 1.5, -0.1])
def test_a_share_of_nothing_is_refused(share):
    with pytest.raises(ValueError, match=f"share {share}: give the part of the entries"):
        compression.TopK(share)
