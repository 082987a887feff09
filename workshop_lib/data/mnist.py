"""MNIST, or any data set in its IDX format (such as Fashion-MNIST), plain or gzip-compressed.

The format (Y. LeCun, "The MNIST database of handwritten digits"): two zero bytes, one byte for the type (8 = unsigned
byte), one for the number of dimensions, each dimension as a big-endian uint32, then the values. Images stay uint8,
which takes a quarter of the memory of float32. They are normalized batch by batch, in one place
(workshop_lib.models.torch_cnn.normalize).
"""

import functools
import gzip
import hashlib
import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workshop_lib import paths
from workshop_lib.data.shard import shard_bounds
from workshop_lib.errors import InputError

CLASSES = 10
LEAST_SIDE = 16  # pixels; two convolutions and two pools leave nothing of a smaller image
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
# SHA-256 of the decompressed content, because the same content can be compressed in many ways.
SHIPPED_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
UNSIGNED_BYTE = 8
ANOTHER_FOLDER = "choose another folder with --data-dir"


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
    checkout. This MNIST is compared with known checksums, while any other folder in IDX format is only checked for
    consistency. The result is cached in this process. Raises DataError naming the file, what was expected and what was
    found, and InputError for an unknown split.
    """
    if split not in FILES:
        raise InputError(f"split {split!r}: use 'train' or 'test'")
    folder = Path(data_dir or paths.MNIST)
    # The path is absolute, so that the cache cannot return another folder's data after a change of directory.
    return _load(split, folder.expanduser().absolute(), folder == paths.SHIPPED_MNIST, rank, world_size)


@functools.lru_cache(maxsize=8)
def _load(split: str, folder: Path, shipped: bool, rank: int, world_size: int) -> Split:
    image_name, label_name = FILES[split]
    image_file = _IdxFile(folder, image_name, 2, shipped)
    label_file = _IdxFile(folder, label_name, 0, shipped)
    if image_file.rows != label_file.rows:
        expected = f"{image_file.rows} labels, one for each image in {image_file.path.name}"
        raise label_file.wrong(expected, label_file.rows)
    start, stop = shard_bounds(image_file.rows, rank, world_size)
    labels = label_file.read(0, label_file.rows)
    classes = max(CLASSES, 1 + int(labels.max()))  # from all rows, so that all ranks have the same network
    return Split(image_file.read(start, stop), labels[start:stop], start, image_file.rows, classes)


class _IdxFile:
    """One IDX file. Its header is checked when it is opened, and its rows are copied on demand.

    A plain file is memory-mapped, so only the rows asked for are read. The shipped data, compressed files and labels
    are read completely.
    """

    def __init__(self, folder: Path, name: str, row_dimensions: int, shipped: bool):
        self.path = folder / name
        self.sha256 = SHIPPED_SHA256[name] if shipped else None
        for path in (folder / f"{name}.gz", self.path):
            if path.is_file():
                self.path = path
        self.content = self._open()
        self.header_bytes = 4 * (2 + row_dimensions)
        self.rows, *self.row_shape = self._check_header()

    def wrong(self, expected: str, found: object) -> DataError:
        """Return the error for a file that was damaged or is not the expected one."""
        remedy = f"Copy the file again, or {ANOTHER_FOLDER}."
        if self.sha256:
            remedy = "Restore it with: git checkout -- assets/mnist"
        return DataError(f"{self.path}: expected {expected}, found {found}. {remedy}")

    def _missing(self) -> DataError:
        folder = self.path.parent
        found = "no such folder"
        if folder.is_dir():
            found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "an empty folder"
        return self.wrong("this file, plain or with .gz", found)

    def _open(self) -> np.ndarray:
        compressed = self.path.suffix == ".gz"
        if not self.path.is_file():
            raise self._missing()
        try:
            if compressed:
                content = np.frombuffer(gzip.decompress(self.path.read_bytes()), np.uint8)
            else:
                content = np.memmap(self.path, np.uint8, "r")
        except (OSError, EOFError, ValueError, zlib.error) as error:  # ValueError: an empty file cannot be mapped
            content_is = f" whose content has SHA-256 {self.sha256}" if self.sha256 else ""
            kind = "gzip file" if compressed else "file"
            raise self.wrong(f"a readable {kind}{content_is}", error) from error
        if self.sha256 and (digest := hashlib.sha256(content.data).hexdigest()) != self.sha256:
            raise self.wrong(f"content with SHA-256 {self.sha256}", digest)
        return content

    def _check_header(self) -> list[int]:
        """Return the number of rows and the shape of each row, from the header. Raises DataError if it is wrong."""
        header = self.content[: self.header_bytes].tobytes()
        magic = bytes([0, 0, UNSIGNED_BYTE, self.header_bytes // 4 - 1])
        if len(header) < self.header_bytes or header[:4] != magic:
            raise self.wrong(
                f"an IDX file that starts with bytes {magic.hex(' ')} in a header of {self.header_bytes} bytes",
                f"{header[:4].hex(' ') or 'nothing'} in {len(header)} bytes",
            )
        rows, *shape = np.frombuffer(header, ">u4", offset=4).tolist()
        if rows == 0:
            raise self.wrong("at least one row", "none")
        if min(shape, default=LEAST_SIDE) < LEAST_SIDE:
            raise DataError(
                f"{self.path}: images of {' x '.join(map(str, shape))} pixels; the workshop's networks need "
                f"{LEAST_SIDE} each way, so enlarge them, or {ANOTHER_FOLDER}."
            )
        return [rows, *shape]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows [start, stop), uint8 [stop - start, *row_shape], read-only."""
        values = self.content[self.header_bytes :]
        row_bytes = math.prod(self.row_shape)
        expected = self.rows * row_bytes
        if len(values) != expected:
            raise self.wrong(f"{expected} bytes of data after the header ({self.rows} rows)", len(values))
        rows = np.array(values[start * row_bytes : stop * row_bytes]).reshape(stop - start, *self.row_shape)
        rows.setflags(write=False)
        return rows
