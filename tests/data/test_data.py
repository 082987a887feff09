"""The IDX loader: what it reads, and how it refuses what is damaged."""

import gzip
import shutil

import numpy as np
import pytest
from training.ladder import idx_bytes

from workshop_lib import paths
from workshop_lib.data import mnist

NAMES = {split: dict(zip(("images", "labels"), mnist.FILES[split], strict=True)) for split in mnist.FILES}
ROWS = {"train": 50, "test": 23}


@pytest.fixture(params=["plain", "gzip"])
def folder(tmp_path, request):
    """Another data set in the same format, as Fashion-MNIST is."""
    generator = np.random.default_rng(3)
    for split, rows in ROWS.items():
        images = generator.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        labels = generator.integers(0, 10, rows, dtype=np.uint8)
        for kind, array in (("images", images), ("labels", labels)):
            path = tmp_path / NAMES[split][kind]
            content = idx_bytes(array)
            if request.param == "gzip":
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
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_ranks_hold_their_own_rows(folder, split, world_size):
    whole = mnist.load(split, folder)
    parts = [mnist.load(split, folder, rank, world_size) for rank in range(world_size)]
    assert np.array_equal(np.concatenate([p.images for p in parts]), whole.images)
    assert np.array_equal(np.concatenate([p.labels for p in parts]), whole.labels)
    for part in parts:
        assert part.total == whole.total == ROWS[split]
        assert np.array_equal(part.images, whole.images[part.start :][: len(part.images)])


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_know_all_classes(folder, rank):
    rewrite(file_of(folder, "train", "labels"), lambda content: content[:12] + bytes([46]) + content[13:])
    assert mnist.load("train", folder, rank, 2).classes == 47
    assert mnist.load("test", folder, rank, 2).classes == 10


def test_images_of_another_size_are_fine_if_all_have_it(folder):
    path = file_of(folder, "train", "images")
    content = idx_bytes(np.arange(50 * 16 * 40, dtype=np.uint32).astype(np.uint8).reshape(50, 16, 40))
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    train = mnist.load("train", folder, 1, 2)
    assert train.shape == (16, 40) and train.images[0, 0, 1] == (25 * 16 * 40 + 1) % 256
    with pytest.raises(mnist.DataError, match="have 16 x 40 and 28 x 28 pixels; scale the test images"):
        mnist.classes_and_shape(train, mnist.load("test", folder))


@pytest.mark.parametrize("kind", ["images", "labels"])
def test_missing(folder, kind):
    file_of(folder, "train", kind).unlink()
    with pytest.raises(mnist.DataError, match=f"{NAMES['train'][kind]}.*found t10k.*--data-dir"):
        mnist.load("train", folder)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("nowhere", "nowhere/.* found no such folder"),
        ("file", "file/.* found no such folder"),
        ("empty", "empty/train-images-idx3-ubyte: expected this file, .* found an empty folder"),
    ],
)
def test_a_folder_that_is_none_or_empty(tmp_path, place, words):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(mnist.DataError, match=words):
        mnist.load("train", tmp_path / place)


@pytest.mark.parametrize("kind", ["images", "labels"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_truncated_content(folder, kind, world_size):
    path = file_of(folder, "train", kind)
    rewrite(path, lambda content: content[:-10])
    expected = ROWS["train"] * (784 if kind == "images" else 1)
    with pytest.raises(mnist.DataError, match=f"{path.name}: expected {expected} bytes.*found {expected - 10}"):
        mnist.load("train", folder, 0, world_size)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("images", lambda c: b"\0\0\x0d" + c[3:], "00 00 08 03.*found 00 00 0d 03"),
        ("images", lambda c: b"<html>" + c, "found 3c 68 74 6d"),
        (
            "images",
            lambda c: c[:8] + b"\0\0\0\x0f" + c[12:],
            "images of 15 x 28 pixels; .* need 16 each way, so enlarge",
        ),
        ("images", lambda c: c[:4] + b"\xff\xff\xff\xff" + c[8:], "labels, one for each image"),
        ("images", lambda c: c + b"more", "found 39204"),
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
    with pytest.raises(mnist.DataError, match=f"{path.name}: expected a readable gzip file, found"):
        mnist.load("train", tmp_path)


@pytest.fixture
def shipped_copy(tmp_path, monkeypatch):
    """A copy of the shipped files, taken for the checkout's own."""
    for path in paths.MNIST.glob("*.gz"):
        shutil.copyfile(path, tmp_path / path.name)
    for name in ("MNIST", "SHIPPED_MNIST"):
        monkeypatch.setattr(paths, name, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("split", "kind", "rank"),
    [
        ("test", "images", 0),  # which does not keep the changed byte, and still sees it
        ("test", "labels", 1),
    ],
)
def test_one_changed_byte_of_the_shipped_data(shipped_copy, split, kind, rank):
    path = file_of(shipped_copy, split, kind)
    rewrite(path, lambda c: c[:-1] + bytes([c[-1] ^ 1]))
    expected = mnist.SHIPPED_SHA256[NAMES[split][kind]]
    with pytest.raises(mnist.DataError, match=f"{path.name}: .*{expected}, found [0-9a-f]{{64}}.*git checkout"):
        mnist.load(split, None, rank, 2)
