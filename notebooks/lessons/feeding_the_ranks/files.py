"""Writes the data files of 09_feeding_the_ranks, and says which rank gets which part of one."""

from pathlib import Path

import numpy as np

from workshop_lib.training.data.shard import shard_bounds

ROW_BYTES = 28 * 28


def write_files(folder: Path, images: np.ndarray, rows: int) -> None:
    """Write images, uint8 [n, 28, 28], to a folder: `rows` of them to each of the files 0, 1, 2, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, begin in enumerate(range(0, len(images), rows)):
        (folder / str(number)).write_bytes(images[begin : begin + rows].tobytes())


def parts_of(rows: int, size: int) -> list[tuple[int, int]]:
    """The (offset, bytes) of each rank's rows in a file of `rows` images; their numbers differ by at most one."""
    bounds = [shard_bounds(rows, rank, size) for rank in range(size)]
    return [(start * ROW_BYTES, (stop - start) * ROW_BYTES) for start, stop in bounds]
