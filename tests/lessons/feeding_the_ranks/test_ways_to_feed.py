"""Ways to feed the ranks: who gets which rows of a file, and the bytes, as the program and the system count them."""

import json
import subprocess
import sys
import time
import zlib

import numpy as np
import psutil
import pytest
from drawn import texts
from needs import needs
from our_ranks import on_the_first
from training.ladder import idx_bytes

from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import SCRIPTS
from workshop_lib.training.data import mnist

from lessons.feeding_the_ranks import feeding, figures, training

pytestmark = pytest.mark.full

RANKS = 3
ROWS, ROW_BYTES, HEADER = 6_001, 784, 16  # rows that neither 2 nor 3 ranks divide
FILE_BYTES = HEADER + ROWS * ROW_BYTES
SLACK_BYTES = 8192  # what a process reads besides: the counts themselves, and whatever its threads look at


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file whose rows each begin with their number."""
    images = np.random.default_rng(1).integers(0, 256, (ROWS, 28, 28), np.uint8)
    images.reshape(ROWS, -1)[:, :4] = np.arange(ROWS, dtype="<u4").reshape(-1, 1).view(np.uint8)
    file = tmp_path_factory.mktemp("feeding") / "images.idx"
    feeding.write_idx(file, images)
    return file


def everyone_reads_all(path):
    def way(comm, parts):
        offset, nbytes = parts[comm.rank]
        return np.fromfile(path, np.uint8)[offset : offset + nbytes]

    return way


def own_part(path):
    def way(comm, parts):
        offset, nbytes = parts[comm.rank]
        return np.fromfile(path, np.uint8, nbytes, offset=offset)

    return way


@on_the_first(1, 2, 3)
def test_ways_are_timed_and_their_bytes_are_those_that_the_system_counts(comm, path):
    parts = feeding.parts_of(ROWS, comm.size)
    ways = {"everyone reads all": everyone_reads_all(path), "own part": own_part(path)}
    rows = feeding.measure(comm, path, parts, ways, repeats=2)
    assert [(row["way"], row["cold"]) for row in rows] == [(way, cold) for way in ways for cold in (True, False)]
    for row in rows:
        assert row["ranks"] == comm.size and row["file_bytes"] == FILE_BYTES
        assert len(row["seconds"]) == 2 and min(row["seconds"]) > 0
        if feeding.os_counts() is None:
            assert row["asked_bytes"] is None and row["storage_bytes"] is None
            continue  # this system has no /proc/self/io to compare with
        wanted = [FILE_BYTES if row["way"] == "everyone reads all" else nbytes for _, nbytes in parts]
        for of_system, of_way in zip(row["asked_bytes"], wanted, strict=True):
            assert 0 <= of_system - of_way < SLACK_BYTES * comm.size, row


def test_the_parts_hold_all_rows_each_once_and_in_order():
    for size in (1, 2, 3, 7):
        at = HEADER
        counts = []
        for offset, nbytes in feeding.parts_of(ROWS, size):
            assert offset == at and nbytes % ROW_BYTES == 0
            counts.append(nbytes // ROW_BYTES)
            at += nbytes
        assert at == FILE_BYTES and max(counts) - min(counts) <= 1


def test_the_file_is_mnist_so_that_others_can_read_it(tmp_path):
    images = mnist.load("test").images[:50]
    assert feeding.write_idx(tmp_path / mnist.FILES["test"][0], images, copies=3) == 150
    (tmp_path / mnist.FILES["test"][1]).write_bytes(idx_bytes(np.full(150, 7, np.uint8)))
    read = mnist.load("test", tmp_path).images
    assert (read == np.concatenate([images] * 3)).all()


def test_rows_are_read_in_one_piece(path):
    block = feeding.read_rows(path, 7, 3)
    assert block.shape == (3, 784) and block[:, 0].tolist() == [7, 8, 9]


def file_system(path) -> str:
    mounted = [part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    return max(mounted, key=lambda part: len(part.mountpoint)).fstype if mounted else "unknown"


def test_a_dropped_file_has_to_be_read_from_the_storage_again(path):
    if (kind := file_system(path)) not in ("ext4", "xfs", "btrfs"):
        pytest.skip(f"{kind}: this file system has its files in memory, or does not follow the advice")
    path.read_bytes()
    feeding.drop_cache(path)
    content, _, cold = feeding.measured(path.read_bytes)
    again, _, warm = feeding.measured(path.read_bytes)
    assert zlib.crc32(content) == zlib.crc32(again)
    assert cold.storage_bytes >= len(content) and warm.storage_bytes == 0


def test_a_throttled_read_takes_as_long_as_its_storage_would():
    slow = training.throttled(lambda i: np.full(1000, i, np.uint8), bytes_per_s=20_000)
    batch, seconds, _ = feeding.measured(lambda: slow(3))
    assert batch.tolist() == [3] * 1000
    assert 0.05 <= seconds < 5


@on_the_first(2)
def test_an_epoch_is_split_into_waiting_and_computing_on_the_slowest_rank(comm):
    def late():
        for i in range(3):
            time.sleep((0.1 if i == 0 else 0.02) * comm.rank)
            yield np.zeros(64 * ROW_BYTES, np.uint8)

    spent = training.measure(comm, {"late": late}, first_row=64, repeats=2)
    assert spent["late"].shape == (2, 3)
    first_s, waiting_s, computing_s = spent["late"][0]
    assert 0.1 <= first_s < 1 and 0.04 <= waiting_s < 1 and computing_s > 0
    assert training.images_per_s() > 1


@needs("tensorflow")
def test_the_script_of_tf_data_measures_its_chains(tmp_path):
    words = [sys.executable, SCRIPTS / "loader_tf.py", tmp_path / "times.json", "2", "1"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    times = json.loads((tmp_path / "times.json").read_text())
    assert list(times) == ["map", "map, in parallel", "interleave", "map, prefetch"]
    assert sum(times["map, prefetch"][0]) < sum(times["map"][0])


def test_a_guess_of_bytes_from_the_storage_is_compared_or_a_line_says_why_not(capsys):
    guess = predict("How many MB?", low=0, high=100, unit="MB")
    cold = {"way": "own part", "cold": True, "ranks": 2, "seconds": [0.2], "storage_bytes": [41_000_000]}
    assert "41 MB" in texts(figures.compare_storage(guess, [cold], "own part"))
    assert figures.compare_storage(guess, [cold | {"storage_bytes": None}], "own part") is None
    assert figures.compare_storage(guess, [cold | {"storage_bytes": [0]}], "own part") is None
    assert capsys.readouterr().out.splitlines() == [
        "This system doesn't count what comes from the storage.",
        "Nothing came from the storage: this file system lives in memory, or doesn't forget when asked.",
    ]
