"""Ways to read samples one by one, for the section on small pieces in 09_feeding_the_ranks.

A shard is a tar file of many samples in WebDataset's format: the files of one sample follow one another and share a
name, and their suffixes say what they hold, as in 000042.raw and 000042.cls. A shard is read from front to back, in
large pieces.
"""

import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from workshop_lib.lessons.feeding_the_ranks import feeding
from workshop_lib.lessons.feeding_the_ranks.feeding import HEADER_BYTES, ROW_BYTES
from workshop_lib.paths import replacing

MB = 1e6


def write(folder: Path, images: np.ndarray, labels: np.ndarray, per_rank: int) -> None:
    """Write each image to a file of its own, and `per_rank` samples to each shard. One process calls it."""
    for number, image in enumerate(images):
        image.tofile(_single(folder, number))
    write_shards(folder, images, labels, per_rank)


def write_shards(folder: Path, images: np.ndarray, labels: np.ndarray, per_shard: int) -> list[Path]:
    """Pack samples into shards of `per_shard` samples each, in order; return the paths. One process calls it."""
    paths = []
    for first in range(0, len(images), per_shard):
        path = _shard(folder, first // per_shard)
        with replacing(path) as temporary, tarfile.open(temporary, "w") as shard:
            for row in range(first, min(first + per_shard, len(images))):
                for suffix, content in (("raw", images[row].tobytes()), ("cls", str(labels[row]).encode())):
                    member = tarfile.TarInfo(f"{row:06}.{suffix}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
        paths.append(path)
    return paths


def samples(shard: str | os.PathLike) -> Iterator[dict[str, bytes]]:
    """Yield the samples of a shard in order, each as {"key": name, suffix: content, …}."""
    sample: dict = {}
    with tarfile.open(shard, "r|") as stream:  # "|": a stream, read without seeking
        for member in stream:
            key, _, suffix = member.name.partition(".")
            if sample and sample["key"] != key:
                yield sample
                sample = {}
            content = stream.extractfile(member)
            sample |= {"key": key, suffix: content.read() if content else b""}
    if sample:
        yield sample


def read_shard(shard: str | os.PathLike) -> np.ndarray:
    """Read all images of a shard: uint8 [n, bytes per image]."""
    return np.stack([np.frombuffer(sample["raw"], np.uint8) for sample in samples(shard)])


def read_block(path: str | os.PathLike, first_row: int, rows: int) -> np.ndarray:
    """Read consecutive rows of the file of images in one read: uint8 [rows, 784]."""
    offset = HEADER_BYTES + first_row * ROW_BYTES
    return np.fromfile(path, np.uint8, rows * ROW_BYTES, offset=offset).reshape(rows, ROW_BYTES)


def read_rows(path: str | os.PathLike, indices: Iterable[int]) -> np.ndarray:
    """Read rows at any indices of the file of images, with one read per row: uint8 [len(indices), 784]."""
    rows = []
    with open(path, "rb", buffering=0) as file:
        for index in indices:
            file.seek(HEADER_BYTES + int(index) * ROW_BYTES)
            rows.append(np.frombuffer(file.read(ROW_BYTES), np.uint8))
    return np.stack(rows)


def read_files(paths: Iterable[str | os.PathLike]) -> np.ndarray:
    """Read one row from each file: uint8 [files, bytes]. Each file is opened, read once and closed."""
    return np.stack([np.fromfile(path, np.uint8) for path in paths])


def measure(comm, path: str | os.PathLike, folder: Path, per_rank: int, repeats: int) -> pd.DataFrame:
    """Let every rank read `per_rank` images in four ways, cold; return a table with one line per way.

    All ranks call it, after `write`, and it blocks. `path` is the file of images. Every rank gets the same table.
    """
    rows = (os.path.getsize(path) - HEADER_BYTES) // ROW_BYTES
    first = comm.rank * per_rank
    scattered = np.random.default_rng(comm.rank).choice(rows, per_rank, replace=False)
    singles = [_single(folder, number) for number in range(first, first + per_rank)]
    shard = _shard(folder, comm.rank)
    ways: dict[str, tuple[list, int, Callable[[], np.ndarray]]] = {
        "a block": ([path], 1, lambda: read_block(path, first, per_rank)),
        "scattered rows": ([path], 1, lambda: read_rows(path, scattered)),
        "a file per image": (singles, per_rank, lambda: read_files(singles)),
        "a tar shard": ([shard], 1, lambda: read_shard(shard)),
    }
    calls: dict[str, list[feeding.CountedCall]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, (files, _, way) in ways.items():
            for file in files:
                feeding.drop_cache(file)
            comm.Barrier()
            calls[name].append(feeding.measured(way)._replace(returned=None))
    lines = {}
    for name, (_, opened, _) in ways.items():
        rounds = list(zip(*comm.allgather(calls[name]), strict=True))  # [round][rank]
        slowest_ms = [1e3 * max(call.seconds for call in of_ranks) for of_ranks in rounds]
        lines[name] = {
            "files opened": comm.size * opened,
            "asked for, MB": _megabytes(rounds, "asked_bytes"),
            "from the storage, MB": _megabytes(rounds, "storage_bytes"),
            "ms, slowest rank": round(float(np.median(slowest_ms)), 1),
            "fastest to slowest round": f"{min(slowest_ms):.1f} to {max(slowest_ms):.1f}",
        }
    return pd.DataFrame(lines).T


def _megabytes(rounds: list[tuple[feeding.CountedCall, ...]], count: str) -> float | None:
    """The median over the rounds of what all ranks together moved; None if the system does not count."""
    if any(call.counts is None for of_ranks in rounds for call in of_ranks):
        return None
    totals = [sum(getattr(call.counts, count) for call in of_ranks) for of_ranks in rounds]
    return round(float(np.median(totals)) / MB, 2)


def _single(folder: Path, number: int) -> Path:
    return folder / f"{number:06}.raw"


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:04}.tar"
