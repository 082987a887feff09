"""The IDX loader: what it reads, and how it refuses what is damaged."""

import gzip

import numpy as np
import pytest
from training.ladder import idx_bytes

from workshop_lib.training.data import mnist

NAMES = {split: dict(zip(("images", "labels"), mnist.FILES[split], strict=True)) for split in mnist.FILES}
ROWS = {"train": 50, "test": 23}


@pytest.fixture
def folder(tmp_path):
    """Another data set in the same format, as Fashion-MNIST is: its training data is compressed."""
    generator = np.random.default_rng(3)
    for split, rows in ROWS.items():
        images = generator.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        labels = generator.integers(0, 10, rows, dtype=np.uint8)
        for kind, array in (("images", images), ("labels", labels)):
            path = tmp_path / NAMES[split][kind]
            content = idx_bytes(array)
            if split == "train":
                path = path.with_name(f"{path.name}.gz")
                content = gzip.compress(content)
            path.write_bytes(content)
    return tmp_path


def file_of(folder, split, kind):
    return next(folder.glob(f"{NAMES[split][kind]}*"))


def rewrite(path, change):
    """Change the content of a plain or compressed file."""
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes())), 1))
    else:
        path.write_bytes(change(path.read_bytes()))


def test_shipped_mnist():
    train, test = mnist.load("train"), mnist.load("test")
    assert train.images.shape == (60_000, 28, 28) and test.images.shape == (10_000, 28, 28)
    assert train.images.mean() == pytest.approx(33.3184, abs=1e-4)
    assert train.images.std() == pytest.approx(78.5675, abs=1e-4)
    assert not train.images.flags.writeable and not train.labels.flags.writeable
    assert mnist.load("train") is train  # kept for the life of the process


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_ranks_hold_their_own_rows(folder, split, world_size):
    whole = mnist.load(split, folder)
    parts = [mnist.load(split, folder, rank, world_size) for rank in range(world_size)]
    assert np.array_equal(np.concatenate([p.images for p in parts]), whole.images)
    assert np.array_equal(np.concatenate([p.labels for p in parts]), whole.labels)
    for part in parts:
        assert part.total == whole.total == ROWS[split]
        assert np.array_equal(part.images, whole.images[part.start :][: len(part.images)])


def test_all_ranks_know_all_classes(folder):
    rewrite(file_of(folder, "train", "labels"), lambda content: content[:12] + bytes([46]) + content[13:])
    assert [mnist.load("train", folder, rank, 2).classes for rank in (0, 1)] == [47, 47]
    assert mnist.load("test", folder).classes == 10


def test_images_of_another_size_are_fine_if_all_have_it(folder):
    pixels = np.arange(50 * 16 * 40, dtype=np.uint32).astype(np.uint8)
    rewrite(file_of(folder, "train", "images"), lambda _: idx_bytes(pixels.reshape(50, 16, 40)))
    train = mnist.load("train", folder, 1, 2)
    assert train.shape == (16, 40) and train.images[0, 0, 1] == (25 * 16 * 40 + 1) % 256
    with pytest.raises(mnist.DataError, match="have 16 x 40 and 28 x 28 pixels; scale the test images"):
        mnist.classes_and_shape(train, mnist.load("test", folder))


def test_missing(folder):
    file_of(folder, "train", "labels").unlink()
    with pytest.raises(mnist.DataError, match="train-labels.*found t10k.*--data-dir"):
        mnist.load("train", folder)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("images", lambda c: b"\0\0\x0d" + c[3:], "00 00 08 03.*found 00 00 0d 03"),
        ("images", lambda c: b"<html>" + c, "found 3c 68 74 6d"),
        ("images", lambda c: idx_bytes(np.zeros((50, 15, 28), np.uint8)), "images of 15 x 28 pixels; .* so enlarge"),
        ("images", lambda c: c[:-10], "expected 50 rows, 39200 bytes after the header, found 39190"),
        ("labels", lambda c: idx_bytes(np.zeros(49, np.uint8)), "train-labels.*: expected 50 labels.*found 49"),
    ],
)
def test_wrong_content(folder, kind, change, words):
    rewrite(file_of(folder, "train", kind), change)
    with pytest.raises(mnist.DataError, match=words):
        mnist.load("train", folder)


@pytest.mark.parametrize(
    "damage",
    [lambda c: c[:150], lambda c: c[:150] + bytes([c[150] ^ 255]) + c[151:], lambda c: b"<html>" + c],
    ids=["cut", "flipped", "not gzip"],
)
def test_damaged_gzip(tmp_path, damage):
    path = tmp_path / f"{NAMES['train']['images']}.gz"
    path.write_bytes(damage(gzip.compress(idx_bytes(np.arange(784 * 50, dtype=np.uint8).reshape(50, 28, 28)))))
    (tmp_path / NAMES["train"]["labels"]).write_bytes(idx_bytes(np.zeros(50, np.uint8)))
    with pytest.raises(mnist.DataError, match=f"{path.name}: expected a readable file, found"):
        mnist.load("train", tmp_path)
