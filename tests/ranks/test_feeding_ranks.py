"""Ways to feed the ranks on 1 to 3 of them: who gets which rows, and the bytes, by two counts."""

import json
import os
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest
from ranks.launching import run_script

from workshop_lib.comm import feeding
from workshop_lib.data import mnist

RANKS, ROWS, ROW_BYTES = 3, 6_001, 784
FILE_BYTES = 16 + ROWS * ROW_BYTES
SLACK_BYTES = 8192  # what a process reads besides: the counts themselves, and whatever its threads look at


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """{ranks: what feeding_runs.py found}"""
    folder = tmp_path_factory.mktemp("feeding")
    run_script(RANKS, Path(__file__).with_name("feeding_runs.py"), folder, timeout_s=150)
    return {int(size): facts for size, facts in json.loads((folder / "found.json").read_text()).items()}


def shares(size: int) -> list[int]:
    """Rows of each rank."""
    return [ROWS * (rank + 1) // size - ROWS * rank // size for rank in range(size)]


@pytest.mark.parametrize("size", range(1, RANKS + 1))
@pytest.mark.parametrize("way", feeding.WAYS)
def test_the_ranks_get_all_rows_each_once_and_in_order(found, way, size):
    of_ranks = [of["rows_of"][way] for of in found[size]["of_ranks"]]
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
def test_bytes_files_and_messages_are_counted(found, size):
    rows = found[size]["rows"]
    assert [row["way"] for row in rows[::2]] == [row["way"] for row in rows[1::2]] == list(feeding.WAYS)
    assert [row["cold"] for row in rows] == [True, False] * len(feeding.WAYS)
    for row in rows:
        expected = by_program(row["way"], size)
        assert {name: row[name] for name in expected} == expected, row["way"]
        assert row["ranks"] == size and row["file_bytes"] == FILE_BYTES
        assert len(row["seconds"]) == 2 and min(row["seconds"]) > 0


@pytest.mark.skipif(feeding.os_counts() is None, reason="this system has no /proc/self/io to compare with")
@pytest.mark.parametrize("size", range(1, RANKS + 1))
def test_the_operating_system_counts_the_same(found, size):
    for row in found[size]["rows"]:
        asked, read = row["asked_bytes"], row["bytes_read"]
        if row["way"] == "MPI-IO":  # whoever reads for whom: together every byte once
            asked, read = [sum(asked)], [sum(read)]
        for of_system, of_program in zip(asked, read, strict=True):
            assert 0 <= of_system - of_program < SLACK_BYTES * size, row


@pytest.mark.parametrize("size", range(1, RANKS + 1))
def test_mistakes_are_told(found, size):
    for rank, of in enumerate(found[size]["of_ranks"]):
        assert of["no_file"].startswith(f"FileNotFoundError: there is no images.idx.{rank}-of-{size}")
        assert f"do not fit {size} ranks" in of["no_file"]
        swapped = [str(other) for other in range(size) if 2 * other != size - 1]
        expected = f"RuntimeError: with 'swapped', rank {', '.join(swapped)} got other bytes" * bool(swapped)
        assert of["swapped"].startswith(expected) and bool(of["swapped"]) == bool(swapped)
        assert "bytes from" in of["short"] and "are there" in of["short"], "every rank is told of the last one"


def test_the_file_is_mnist_so_that_others_can_read_it(tmp_path):
    images = mnist.load("test").images[:50]
    assert feeding.write_idx(tmp_path / mnist.FILES["test"][0], images, copies=3) == 150
    np.full(158, 7, np.uint8).tofile(tmp_path / "labels")
    header = bytes([0, 0, 8, 1, 0, 0, 0, 150])
    (tmp_path / mnist.FILES["test"][1]).write_bytes(header + bytes([7]) * 150)
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
    assert cold["storage_bytes"] >= len(content) and warm["storage_bytes"] == 0


def test_a_throttled_read_takes_as_long_as_its_storage_would():
    slow = feeding.throttled(lambda i: np.full(1000, i, np.uint8), bytes_per_s=20_000)
    batch, seconds, _ = feeding.counted(lambda: slow(3))
    assert batch.tolist() == [3] * 1000
    assert 0.05 <= seconds < 5
