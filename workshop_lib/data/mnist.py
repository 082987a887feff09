"""MNIST, or any data set in its IDX format (Fashion-MNIST), plain or gzip-compressed.

The format (Y. LeCun, "The MNIST database of handwritten digits"): two zero bytes, one byte for
the type (8 = unsigned byte), one for the number of dimensions, each dimension as a big-endian
uint32, then the values. Images stay uint8: a quarter of the memory of float32, and they are
normalised batch by batch in one place (workshop_lib.models.torch_cnn.normalise).
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

IMAGE_SHAPE = (28, 28)
CLASSES = 10
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
READ_CHUNK_BYTES = 1 << 20


class DataError(InputError):
    """A data file is missing, damaged or not what it should be; the text says what to do."""


@dataclass(frozen=True)
class Split:
    """Rows of the train or test split; with several ranks, this rank's contiguous rows.

    images: uint8 [n, 28, 28] and labels: uint8 [n], both read-only. `start` is the index of the
    first row in the whole split of `total` rows.
    """

    images: np.ndarray
    labels: np.ndarray
    start: int
    total: int


def load(split: str, data_dir: str | Path | None = None, rank: int = 0, world_size: int = 1):
    """The "train" or "test" Split, or the rows of it that belong to `rank`.

    Without `data_dir` it is the MNIST of this checkout, and its content is compared with known
    checksums. Any other folder in IDX format is checked for consistency. The result is kept for
    the life of the process. Raises DataError naming the file, what was expected and what is there.
    """
    if split not in FILES:
        raise InputError(f"split {split!r}: use 'train' or 'test'")
    folder = paths.MNIST if data_dir is None else Path(data_dir)
    # Absolute, so that a change of working directory cannot return another folder's data.
    return _load(split, folder.expanduser().absolute(), data_dir is None, rank, world_size)


@functools.lru_cache(maxsize=8)
def _load(split: str, folder: Path, shipped: bool, rank: int, world_size: int) -> Split:
    image_name, label_name = FILES[split]
    image_file = _IdxFile(folder, image_name, IMAGE_SHAPE, shipped)
    label_file = _IdxFile(folder, label_name, (), shipped)
    if image_file.rows != label_file.rows:
        raise DataError(
            f"{label_file.path}: expected {image_file.rows} labels, one for each image in "
            f"{image_file.path.name}, found {label_file.rows}. {label_file.remedy}"
        )
    start, stop = shard_bounds(image_file.rows, rank, world_size)
    images = image_file.read(start, stop)
    labels = label_file.read(start, stop)
    if len(labels) and labels.max() >= CLASSES:
        row = int(np.argmax(labels >= CLASSES))
        raise DataError(
            f"{label_file.path}: expected labels 0 to {CLASSES - 1}, found {labels[row]} at "
            f"row {start + row}. {label_file.remedy}"
        )
    return Split(images, labels, start, image_file.rows)


class _IdxFile:
    """One IDX file: its header is checked when it is opened, its rows are read on demand."""

    def __init__(self, folder: Path, name: str, row_shape: tuple[int, ...], shipped: bool):
        self.name, self.row_shape, self.shipped = name, row_shape, shipped
        self.remedy = (
            "Restore it with: git checkout -- assets/mnist"
            if shipped
            else "Copy the file again, or choose another folder with --data-dir."
        )
        self.path = self._find(folder)
        self.rows = self._read_header()

    def _find(self, folder: Path) -> Path:
        for path in (folder / self.name, folder / f"{self.name}.gz"):
            if path.is_file():
                return path
        content = "no such folder"
        if folder.is_dir():
            content = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "an empty folder"
        raise DataError(f"{folder / self.name}: expected this file, plain or with .gz, found {content}. {self.remedy}")

    def _open(self):
        return gzip.open(self.path) if self.path.suffix == ".gz" else open(self.path, "rb")

    @property
    def header_bytes(self) -> int:
        return 4 + 4 * (1 + len(self.row_shape))

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape)

    def _read_header(self) -> int:
        """Number of rows, after checking type and dimensions."""
        try:
            with self._open() as file:
                header = file.read(self.header_bytes)
        except (OSError, EOFError, zlib.error) as error:
            raise self._damaged(error) from error
        magic = bytes([0, 0, UNSIGNED_BYTE, 1 + len(self.row_shape)])
        if len(header) < self.header_bytes or header[:4] != magic:
            raise DataError(
                f"{self.path}: expected an IDX file that starts with bytes {magic.hex(' ')} in a "
                f"header of {self.header_bytes} bytes, found {header[:4].hex(' ') or 'nothing'} "
                f"in {len(header)} bytes. {self.remedy}"
            )
        rows, *shape = (int(n) for n in np.frombuffer(header, ">u4", offset=4))
        if tuple(shape) != self.row_shape or rows == 0:
            raise DataError(
                f"{self.path}: expected at least one row of shape {self.row_shape}, found {rows} "
                f"rows of shape {tuple(shape)}. {self.remedy}"
            )
        return rows

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop), uint8 [stop - start, *row_shape], read-only.

        The rows of a plain file are read by position. A gzip file, or one whose checksum is
        known, is streamed whole, and only these rows are kept.
        """
        try:
            if self.path.suffix == ".gz" or self.shipped:
                rows = self._stream(start * self.row_bytes, stop * self.row_bytes)
            else:
                rows = self._seek(start * self.row_bytes, stop * self.row_bytes)
        except (OSError, EOFError, zlib.error) as error:
            raise self._damaged(error) from error
        rows = rows.reshape(stop - start, *self.row_shape)
        rows.setflags(write=False)
        return rows

    def _seek(self, first_byte: int, end_byte: int) -> np.ndarray:
        self._check_length(self.path.stat().st_size - self.header_bytes)
        offset = self.header_bytes + first_byte
        return np.fromfile(self.path, np.uint8, end_byte - first_byte, offset=offset)

    def _stream(self, first_byte: int, end_byte: int) -> np.ndarray:
        kept = bytearray()
        position = 0
        with self._open() as file:
            digest = hashlib.sha256(file.read(self.header_bytes))
            while chunk := file.read(READ_CHUNK_BYTES):
                if self.shipped:
                    digest.update(chunk)
                low, high = max(first_byte - position, 0), max(end_byte - position, 0)
                kept += chunk[low:high]
                position += len(chunk)
        if self.shipped and digest.hexdigest() != SHIPPED_SHA256[self.name]:
            raise DataError(
                f"{self.path}: expected content with SHA-256 {SHIPPED_SHA256[self.name]}, "
                f"found {digest.hexdigest()}. {self.remedy}"
            )
        self._check_length(position)
        return np.frombuffer(kept, np.uint8)

    def _check_length(self, actual_bytes: int) -> None:
        expected = self.rows * self.row_bytes
        if actual_bytes != expected:
            raise DataError(
                f"{self.path}: expected {expected} bytes of data after the header ({self.rows} "
                f"rows), found {actual_bytes}. {self.remedy}"
            )

    def _damaged(self, error: Exception) -> DataError:
        expected = "a readable gzip file" if self.path.suffix == ".gz" else "a readable file"
        if self.shipped:
            expected += f" whose content has SHA-256 {SHIPPED_SHA256[self.name]}"
        return DataError(f"{self.path}: expected {expected}, found: {error}. {self.remedy}")
