"""What in several lessons needs ranks: one start of three of them, whose outcomes every test here looks at.

With three, no mean can be taken for a half.
"""

import json
import math
import os
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest
from training.ladder import idx_bytes, write_small_mnist
from training.launching import run_script

from workshop_lib.data import mnist
from workshop_lib.lessons.feeding_the_ranks import feeding
from workshop_lib.lessons.less_communication import compression

pytestmark = pytest.mark.full

RANKS = 3
COMM_RUNS = Path(__file__).with_name("comm_runs.py")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """{part: {case: [outcome of each rank]}}, see comm_runs.py."""
    folder = tmp_path_factory.mktemp("comm")
    write_small_mnist(folder / "mnist", train_samples=300, test_samples=100)
    run_script(RANKS, COMM_RUNS, folder, timeout_s=200)
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


# The noise scale's averaging


def test_the_mean_and_both_norms_take_one_allreduce_with_one_number_more(outcomes):
    for dtype, rounding in (("float64", 1e-12), ("float32", 1e-5)):
        for of_rank in outcomes["noise"][dtype]:
            assert of_rank["dtype"] == dtype
            assert max(of_rank[name] for name in ("off", "small off", "big off")) < rounding
            assert of_rank["elements"] == [7 + 1]
            assert of_rank["kept"]


# The counting communicator


def test_bytes_messages_and_rounds_of_arrays_are_counted(outcomes):
    rows = outcomes["counting"]["arrays"]
    assert [row[:3] for row in rows] == [[40 + 24, 2, 2]] * 3
    assert [row[3] for row in rows] == [2, 0, 1]


def test_objects_count_as_what_pickle_makes_of_them(outcomes):
    assert outcomes["counting"]["objects"] == [[0, 2, {"from": 2}], [0, 1, [1, 2, 3]], [0, 1, {"from": 1}]]


def test_only_the_sender_counts_and_any_source_is_logged_as_who_it_was(outcomes):
    assert outcomes["counting"]["any_source"] == [[0, [1, 2], 2], [40, [0], 2], [40, [0], 2]]


WAYS_TO_WAIT = ["waited_for", "waited_for_together", "from_any_rank_during_a_send", "tested", "of_objects"]


@pytest.mark.parametrize("way", WAYS_TO_WAIT)
def test_receives_under_way_are_logged_once_they_are_waited_for(outcomes, way):
    kinds = ["recv"] * 3 + ["send"] * 3
    assert outcomes["counting"][way] == [[3, kinds, [left] * 2, 3] for left in (2.0, 0.0, 1.0)]


def test_a_receive_that_nobody_waited_for_is_not_logged(outcomes):
    assert outcomes["counting"]["never_waited_for"] == [["send", "send", "recv"]] * 3


def test_sends_are_synchronous(outcomes):
    """So that a cycle of blocking sends never ends, however short the messages."""
    for of_rank in outcomes["counting"]["synchronous"]:
        assert len(of_rank) == 8
        assert all(under_way == [True, False] for under_way in of_rank.values()), of_rank


def test_other_calls_are_refused_with_a_sentence(outcomes):
    calls = "Send, Isend, Recv, Irecv, Sendrecv, send, isend, recv, irecv, sendrecv"
    names = ("Allreduce", "bcast", "Isendrecv")
    sentences = [f"this communicator has no {name}: build it from {calls}, rank and size" for name in names]
    assert outcomes["counting"]["refused"] == [sentences] * 3


# DDP with compressed gradients: what is sent, what is kept, and how many bytes


@pytest.fixture
def compressed(outcomes):
    return outcomes["compression"]


def test_all_entries_sent_is_plain_averaging(compressed):
    assert max(compressed["everything sent"]) < 1e-6


def test_what_is_sent_and_what_is_kept_is_what_there_was(compressed):
    for equal, largest in compressed["one step"]:
        assert equal == [True] * 4
        assert largest == [True] * 4


def test_with_feedback_nothing_is_lost_over_many_steps(compressed):
    for of_rank in compressed["feedback"]:
        assert of_rank["difference"] < 1e-6
        assert of_rank["kept"] > 0.05, "else there was nothing to keep"
    for of_rank in compressed["no feedback"]:
        assert of_rank["difference"] > 0.05, "without it, something is"
        assert of_rank["kept"] == 0


def test_the_bytes_are_counted(compressed):
    shapes = compressed["shapes"][0]
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
        "top 0.1 %": (8 * round(0.001 * n), 1),
    }
    assert expected.keys() == compression.ways().keys()
    for of_rank in compressed["trained"]:
        for name, (count, messages) in expected.items():
            assert (of_rank[name]["bytes"], of_rank[name]["messages"]) == (count, messages), name


def test_the_ranks_stay_equal_and_train(compressed):
    for of_rank in compressed["trained"]:
        assert all(way["same"] for way in of_rank.values())
        assert all(way["moved"] > 1e-3 for way in of_rank.values())


def test_a_way_of_its_own_name_trains_and_counts(outcomes):
    every_step, rounds, alone, top = outcomes["less"]
    whole = 4 * 20_434 / 16
    assert [run["bytes_per_sample"] for run in (every_step, rounds)] == [whole, whole]
    assert rounds["test_accuracy"] == pytest.approx(every_step["test_accuracy"], abs=0.01), "averaging in each step"
    assert alone["bytes_per_sample"] == whole / 2, "four steps, one of them after three"
    assert top["bytes_per_sample"] == 8 * 204 / 16
    assert all(run["ranks_identical"] for run in outcomes["less"])


@pytest.mark.parametrize("share", [0, 1.5, -0.1])
def test_a_share_of_nothing_is_refused(share):
    with pytest.raises(ValueError, match=f"share {share}: give the part of the entries"):
        compression.TopK(share)


# Synchronous, lagging, local and asynchronous SGD: each update is what it should be

STEPS = 12
ROUNDING = 1e-12


@pytest.fixture(params=["2", "3"])
def trained(request, outcomes):
    """{case: [outcome of each rank]}, with the number of ranks under "ranks"."""
    return outcomes["staleness"][request.param] | {"ranks": int(request.param)}


def histogram(counts):
    return {int(staleness): count for staleness, count in counts.items()}


@pytest.mark.parametrize(
    ("case", "staleness"),
    [
        ("synchronous", {0: 12}),
        ("lag_sync", {0: 1, 1: 11}),  # the first gradient has nothing to be late against
        ("local_every_step", {0: 12}),
        ("local_every_five", {0: 3, 1: 3, 2: 2, 3: 2, 4: 2}),
    ],
)
def test_it_is_the_recurrence_that_it_says(trained, case, staleness):
    for of_rank in trained[case]:
        assert of_rank["difference"] < ROUNDING
        assert histogram(of_rank["staleness"]) == staleness
        assert sum(of_rank["staleness"].values()) == STEPS
    if "from synchronous" in trained[case][0]:
        assert trained[case][0]["from synchronous"] > 1e-3, "else the comparison could not fail"


def test_each_asynchronous_update_is_of_the_weights_that_the_server_had_sent(trained):
    server, *workers = trained["asynchronous"]
    updates = 3 * STEPS
    assert server["updates"] == sum(server["staleness"].values()) == updates
    assert [of_rank["difference"] < ROUNDING for of_rank in trained["asynchronous"]] == [True] * trained["ranks"]
    done = list(server["by worker"].values())
    assert [worker["computed"] for worker in workers] == [list(range(count)) for count in done]
    assert sum(done) == updates
    if trained["ranks"] == 2:
        assert histogram(server["staleness"]) == {0: updates}
        assert server["from plain SGD"] < ROUNDING
    else:
        assert max(histogram(server["staleness"])) > 1, "the slow worker's gradients come late"
        assert done[0] > done[1] > 0, "and the quick one does more"
        assert server["from plain SGD"] > 1e-3


def test_by_its_name_a_mode_runs_on_the_workers_and_all_ranks_get_the_result(trained):
    for of_rank in trained["by_name"]:
        assert of_rank["difference"] < ROUNDING
        assert histogram(of_rank["staleness"]) == {0: 1, 1: 11}
        assert of_rank["updates"] == STEPS * (trained["ranks"] - 1)
        assert of_rank["equal"]


def test_hardly_any_updates(trained):
    for of_rank in trained["fewer_updates_than_workers"]:
        assert of_rank["difference"] < ROUNDING
    assert trained["fewer_updates_than_workers"][0]["updates"] == 1
    assert trained["none_at_all"] == [0] * trained["ranks"]


def test_with_lag_sync_nobody_waits_for_a_rank_that_is_late_by_less_than_a_step(trained):
    """While a rank is still at its gradient, all others have begun the next one: in each of its steps,
    whichever it is. Synchronous ranks have not in any."""
    late_first, late_last = 0, trained["ranks"] - 1
    for place, rank in enumerate((late_first, late_last)):
        assert trained["ahead"][rank]["lag_sync"][place] == STEPS - 1
        assert trained["ahead"][rank]["synchronous"][place] == 0


def test_every_wait_ends_and_says_what_was_missing(trained):
    absent = trained["a_rank_that_does_not_come"][0]
    assert len(absent["errors"]) == 2
    for error in absent["errors"]:
        assert error.startswith("rank 0 waited 0.3 s for all ranks to begin: ")
    silent = trained["a_worker_that_never_answers"][0]
    assert silent["error"].startswith("rank 0 waited 0.3 s for a gradient from any worker: ")
    assert max([*absent["seconds"], silent["seconds"]]) < 5


# Ways to feed the ranks: who gets which rows, and the bytes, by two counts

ROWS, ROW_BYTES = 6_001, 784
FILE_BYTES = 16 + ROWS * ROW_BYTES
SLACK_BYTES = 8192  # what a process reads besides: the counts themselves, and whatever its threads look at


def shares(size: int) -> list[int]:
    """Rows of each rank."""
    return [ROWS * (rank + 1) // size - ROWS * rank // size for rank in range(size)]


@pytest.mark.parametrize("size", range(1, RANKS + 1))
@pytest.mark.parametrize("way", [*feeding.WAYS, "readers that scatter"])
def test_the_ranks_get_all_rows_each_once_and_in_order(outcomes, way, size):
    of_ranks = [of["rows_of"][way] for of in outcomes["feeding"][str(size)]["of_ranks"]]
    assert [len(rows) for rows in of_ranks] == shares(size)
    assert [row for rows in of_ranks for row in rows] == list(range(ROWS))


def by_program(way: str, size: int) -> dict[str, list[int]]:
    own = [ROW_BYTES * rows for rows in shares(size)]
    none = [0] * size
    cost = {"bytes_read": own, "files_opened": [1] * size, "bytes_sent": none, "messages_sent": none}
    if way == "everyone reads all":
        cost["bytes_read"] = [FILE_BYTES] * size
    elif way == "rank 0 scatters":
        cost["bytes_read"], cost["files_opened"] = [FILE_BYTES, *none[1:]], [1, *none[1:]]
        cost["bytes_sent"], cost["messages_sent"] = [sum(own[1:]), *none[1:]], [size - 1, *none[1:]]
    return cost


@pytest.mark.parametrize("size", range(1, RANKS + 1))
def test_bytes_files_and_messages_are_counted(outcomes, size):
    rows = outcomes["feeding"][str(size)]["rows"]
    assert [row["way"] for row in rows[::2]] == [row["way"] for row in rows[1::2]] == list(feeding.WAYS)
    assert [row["cold"] for row in rows] == [True, False] * len(feeding.WAYS)
    for row in rows:
        expected = by_program(row["way"], size)
        assert {name: row[name] for name in expected} == expected, row["way"]
        assert row["ranks"] == size and row["file_bytes"] == FILE_BYTES
        assert len(row["seconds"]) == 2 and min(row["seconds"]) > 0


@pytest.mark.skipif(feeding.os_counts() is None, reason="this system has no /proc/self/io to compare with")
@pytest.mark.parametrize("size", range(1, RANKS + 1))
def test_the_operating_system_counts_the_same(outcomes, size):
    for row in outcomes["feeding"][str(size)]["rows"]:
        asked, read = row["asked_bytes"], row["bytes_read"]
        if row["way"] == "MPI-IO":  # whoever reads for whom: together every byte once
            asked, read = [sum(asked)], [sum(read)]
        for of_system, of_program in zip(asked, read, strict=True):
            assert 0 <= of_system - of_program < SLACK_BYTES * size, row


@pytest.mark.parametrize("size", range(1, RANKS + 1))
def test_mistakes_are_reported(outcomes, size):
    for rank, of in enumerate(outcomes["feeding"][str(size)]["of_ranks"]):
        assert of["no_file"].startswith(f"InputError: there is no images.idx.{rank}-of-{size}")
        assert f"do not fit {size} ranks" in of["no_file"]
        swapped = [str(other) for other in range(size) if 2 * other != size - 1]
        expected = f"WorkshopError: with 'swapped', rank {', '.join(swapped)} got other bytes" * bool(swapped)
        assert of["swapped"].startswith(expected) and bool(of["swapped"]) == bool(swapped)
        assert "bytes from" in of["short"] and "are there" in of["short"], "every rank is told of the last one"


def test_the_file_is_mnist_so_that_others_can_read_it(tmp_path):
    images = mnist.load("test").images[:50]
    assert feeding.write_idx(tmp_path / mnist.FILES["test"][0], images, copies=3) == 150
    (tmp_path / mnist.FILES["test"][1]).write_bytes(idx_bytes(np.full(150, 7, np.uint8)))
    read = mnist.load("test", tmp_path).images
    assert (read == np.concatenate([images] * 3)).all()


@pytest.fixture
def images(tmp_path):
    """A file of 300 rows, each full of one number."""
    path = tmp_path / "images.idx"
    numbers = np.arange(300, dtype=np.uint16).astype(np.uint8)
    feeding.write_idx(path, np.broadcast_to(numbers[:, None, None], (300, 28, 28)))
    return path


def test_rows_of_one_read_of_many_and_of_many_files(images, tmp_path):
    block = feeding.read_block(images, 16 + 784 * 7, 784, 3)
    assert block.shape == (3, 784) and block[:, 0].tolist() == [7, 8, 9]
    assert feeding.read_rows(images, 16, 784, [250, 3])[:, 783].tolist() == [250, 3]
    names = [tmp_path / f"{number}.raw" for number in (5, 4)]
    for name, row in zip(names, block, strict=False):
        row.tofile(name)
    assert feeding.read_files(names)[:, 0].tolist() == [7, 8]
    with pytest.raises(ValueError, match=r"images.idx: 784 bytes from 235,216 on were asked for, and 0 are"):
        feeding.read_rows(images, 16, 784, [300])


def file_system(path) -> str:
    mounted = [part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    return max(mounted, key=lambda part: len(part.mountpoint)).fstype if mounted else "unknown"


def in_memory(path) -> bool:
    """Whether the first page of a file can be had without waiting for the storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(descriptor, [bytearray(4096)], 0, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def test_a_dropped_file_has_to_be_read_from_the_storage_again(images):
    if (kind := file_system(images)) not in ("ext4", "xfs", "btrfs"):
        pytest.skip(f"{kind}: this file system has its files in memory, or does not follow the advice")
    images.read_bytes()
    assert in_memory(images)
    feeding.drop_cache(images)
    assert not in_memory(images)
    feeding.drop_cache(images)  # having looked, it is on its way into memory
    content, _, cold = feeding.counted(images.read_bytes)
    again, _, warm = feeding.counted(images.read_bytes)
    assert zlib.crc32(content) == zlib.crc32(again)
    assert cold.storage_bytes >= len(content) and warm.storage_bytes == 0


def test_a_throttled_read_takes_as_long_as_its_storage_would():
    slow = feeding.throttled(lambda i: np.full(1000, i, np.uint8), bytes_per_s=20_000)
    batch, seconds, _ = feeding.counted(lambda: slow(3))
    assert batch.tolist() == [3] * 1000
    assert 0.05 <= seconds < 5
