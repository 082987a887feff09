"""Ways to feed the ranks: who gets which rows of a file, and the bytes, as the program and the system count them."""

import os
import zlib

import numpy as np
import psutil
import pytest
from our_ranks import on_the_first
from training.ladder import idx_bytes

from workshop_lib.data import mnist
from workshop_lib.errors import WorkshopError
from workshop_lib.lessons.feeding_the_ranks import feeding, readers

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


def cut_for(comm, path) -> feeding.Parts:
    """The part of each rank, to which a file per rank is cut."""
    parts = feeding.parts_of(ROWS, ROW_BYTES, HEADER, comm.size)
    feeding.cut_files(comm, path, parts)
    return parts


@on_the_first(1, 2, 3)
def test_the_ranks_get_all_rows_each_once_and_in_order(comm, path):
    parts = cut_for(comm, path)
    for name, way in (feeding.WAYS | {"readers that scatter": readers.readers_scatter}).items():
        own = way(comm, path, parts)[0].reshape(-1, ROW_BYTES)[:, :4].copy().view("<u4").ravel().tolist()
        first, last = (ROWS * rank // comm.size for rank in (comm.rank, comm.rank + 1))
        assert own == list(range(first, last)), name


def by_program(way: str, size: int) -> dict[str, list[int]]:
    own = [ROW_BYTES * (ROWS * (rank + 1) // size - ROWS * rank // size) for rank in range(size)]
    none = [0] * size
    cost = {"bytes_read": own, "files_opened": [1] * size, "bytes_sent": none, "messages_sent": none}
    if way == "everyone reads all":
        cost["bytes_read"] = [FILE_BYTES] * size
    elif way == "rank 0 scatters":
        cost["bytes_read"], cost["files_opened"] = [FILE_BYTES, *none[1:]], [1, *none[1:]]
        cost["bytes_sent"], cost["messages_sent"] = [sum(own[1:]), *none[1:]], [size - 1, *none[1:]]
    return cost


@on_the_first(1, 2, 3)
def test_bytes_files_and_messages_are_counted_as_the_system_counts_them(comm, path):
    rows = feeding.measure(comm, path, cut_for(comm, path), repeats=2)
    assert [(row["way"], row["cold"]) for row in rows] == [
        (way, cold) for way in feeding.WAYS for cold in (True, False)
    ]
    for row in rows:
        expected = by_program(row["way"], comm.size)
        assert {name: row[name] for name in expected} == expected, row["way"]
        assert row["ranks"] == comm.size and row["file_bytes"] == FILE_BYTES
        assert len(row["seconds"]) == 2 and min(row["seconds"]) > 0
        if feeding.os_counts() is None:
            continue  # this system has no /proc/self/io to compare with
        asked, read = row["asked_bytes"], row["bytes_read"]
        if row["way"] == "MPI-IO":  # whoever reads for whom: together every byte once
            asked, read = [sum(asked)], [sum(read)]
        for of_system, of_program in zip(asked, read, strict=True):
            assert 0 <= of_system - of_program < SLACK_BYTES * comm.size, row


@on_the_first(1, 2, 3)
def test_bytes_that_are_others_or_not_there_are_reported_on_every_rank(comm, path):
    parts = cut_for(comm, path)
    with pytest.raises(WorkshopError, match=rf"^there is no other.idx.{comm.rank}-of-{comm.size}: .* do not fit"):
        feeding.own_file(comm, path.with_name("other.idx"), parts)
    short = [(offset + ROW_BYTES, nbytes) for offset, nbytes in parts]
    with pytest.raises(WorkshopError, match="bytes from .* are there"):
        feeding.collective_read(comm, path, short)

    def swapped(comm, path, parts):
        return feeding.own_part(comm, path, parts[::-1])

    if comm.size > 1:
        wrong = ", ".join(str(rank) for rank in range(comm.size) if 2 * rank != comm.size - 1)
        with pytest.raises(WorkshopError, match=f"^with 'swapped', rank {wrong} got other bytes"):
            feeding.measure(comm, path, parts, 1, {"swapped": swapped})


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
