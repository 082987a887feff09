"""MNIST, or any data set in its IDX format (such as Fashion-MNIST), plain or gzip-compressed.

The format (Y. LeCun, "The MNIST database of handwritten digits"): two zero bytes, one byte for the type (8 = unsigned
byte), one for the number of dimensions, each dimension as a big-endian uint32, then the values. Images stay uint8,
which takes a quarter of the memory of float32. They are normalized batch by batch, in one place
(workshop_lib.training.models.torch_cnn.normalize).
"""

import functools
import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workshop_lib import paths
from workshop_lib.errors import InputError
from workshop_lib.training.data.shard import shard_bounds

CLASSES = 10
LEAST_SIDE = 16  # pixels; two convolutions and two pools leave nothing of a smaller image
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
UNSIGNED_BYTE = 8


class DataError(InputError):
    """A data file is missing, damaged or not what it should be; the message says what to do."""


@dataclass(frozen=True)
class Split:
    """The rows of the train or test split, or one rank's contiguous part of them.

    images: uint8 [n, 28, 28] and labels: uint8 [n], both read-only. `start` is the index of the first of these rows in
    the whole split, which has `total` rows. All labels of the split are below `classes`, which is at least CLASSES.
    Other data in the same format may have images of another size, and more classes.
    """

    images: np.ndarray
    labels: np.ndarray
    start: int
    total: int
    classes: int = CLASSES

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of an image, in pixels."""
        return self.images.shape[1], self.images.shape[2]


def classes_and_shape(train: Split, test: Split) -> tuple[int, tuple[int, int]]:
    """Return the number of classes and the image shape of a network that is trained and tested on these splits.

    Raises DataError if the images of the two splits differ in shape.
    """
    if train.shape != test.shape:
        sizes = " and ".join(f"{height} x {width}" for height, width in (train.shape, test.shape))
        raise DataError(f"training and test images have {sizes} pixels; scale the test images like the others.")
    return max(train.classes, test.classes), train.shape


def load(split: str, data_dir: str | Path | None = None, rank: int = 0, world_size: int = 1):
    """Return the "train" or "test" Split, or the rows of it that belong to `rank`.

    Without `data_dir`, the data is read from the folder that WORKSHOP_MNIST names, or else from the MNIST of this
    checkout. The result is cached in this process. Raises DataError naming the file, what was expected and what was
    found, and InputError for an unknown split.
    """
    if split not in FILES:
        raise InputError(f"split {split!r}: use 'train' or 'test'")
    if data_dir is None and not paths.MNIST.is_dir() and not paths.IS_CHECKOUT:
        raise DataError(
            "MNIST comes with the workshop's checkout, and only its library is installed here: name a folder that has "
            "the four files with --data-dir, or with WORKSHOP_MNIST."
        )
    # The path is absolute, so that the cache cannot return another folder's data after a change of directory.
    return _load(split, Path(data_dir or paths.MNIST).expanduser().absolute(), rank, world_size)


@functools.lru_cache(maxsize=8)
def _load(split: str, folder: Path, rank: int, world_size: int) -> Split:
    image_name, label_name = FILES[split]
    image_file, images = _read(folder, image_name, dimensions=3)
    if min(images.shape[1:]) < LEAST_SIDE:
        raise DataError(
            f"{image_file}: images of {images.shape[1]} x {images.shape[2]} pixels; the workshop's networks need "
            f"{LEAST_SIDE} each way, so enlarge them, or choose another folder with --data-dir."
        )
    label_file, labels = _read(folder, label_name, dimensions=1)
    if len(images) != len(labels):
        raise _wrong(label_file, f"{len(images)} labels, one for each image in {image_file.name}", len(labels))
    start, stop = shard_bounds(len(images), rank, world_size)
    classes = max(CLASSES, 1 + int(labels.max()))  # from all rows, so that all ranks have the same network
    return Split(images[start:stop], labels[start:stop], start, len(images), classes)


def _read(folder: Path, name: str, dimensions: int) -> tuple[Path, np.ndarray]:
    """Return the path of an IDX file, which may end in .gz, and its values: uint8 [rows, ...], read-only."""
    path = folder / name
    packed = folder / f"{name}.gz"
    if not path.is_file():
        path = packed
    if not path.is_file():
        found = "no such folder"
        if folder.is_dir():
            found = ", ".join(sorted(each.name for each in folder.iterdir())[:8]) or "an empty folder"
        raise _wrong(folder / name, "this file, plain or with .gz", found)
    try:
        content = path.read_bytes()
        if path == packed:
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise _wrong(path, "a readable file", error) from error
    magic = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    header_bytes = 4 * (1 + dimensions)
    if len(content) < header_bytes or content[:4] != magic:
        expected = f"an IDX file that starts with bytes {magic.hex(' ')}"
        raise _wrong(path, expected, f"{content[:4].hex(' ') or 'nothing'} in {len(content)} bytes")
    shape = np.frombuffer(content[4:header_bytes], ">u4").tolist()
    values = np.frombuffer(content, np.uint8, offset=header_bytes)
    if len(values) != math.prod(shape) or not shape[0]:
        raise _wrong(path, f"{shape[0]} rows, {math.prod(shape)} bytes after the header", f"{len(values)} bytes")
    return path, values.reshape(shape)


def _wrong(path: Path, expected: str, found: object) -> DataError:
    """Return the error for a file that was damaged or is not the expected one."""
    return DataError(
        f"{path}: expected {expected}, found {found}. Copy the file again, or choose another folder with --data-dir."
    )
