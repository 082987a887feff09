"""More ways to feed ranks, for the Deeper sections of 09_feeding_the_ranks: several readers that scatter, and shards.

The basic ways are in feeding.py. A shard is a tar file of many samples in WebDataset's format: the files of one sample
follow one another and share a name, and their suffixes say what they hold, as in 000042.raw and 000042.cls. A shard is
read from front to back, in large pieces.
"""

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from mpi4py import MPI

from workshop_lib.lessons.feeding_the_ranks import feeding
from workshop_lib.lessons.feeding_the_ranks.feeding import Cost, Parts
from workshop_lib.paths import replacing


def readers_scatter(comm, path, parts: Parts, readers: int = 2) -> tuple[np.ndarray, Cost]:
    """Each of `readers` ranks reads the parts of some neighboring ranks in one piece, and sends each its part.

    For p ranks, a file of n bytes and r readers, each reader requests n/r bytes, and sends n (p - r)/(p r) bytes in
    p/r - 1 messages. All ranks call it, and it blocks. The parts have to follow one another in the file.
    """
    group = comm.Split(comm.rank * readers // comm.size, comm.rank)
    first = comm.rank - group.rank
    offsets, sizes = zip(*parts[first : first + group.size], strict=True)
    mine = np.empty(sizes[group.rank], np.uint8)
    cost = Cost()
    sending = None
    if group.rank == 0:
        piece = feeding.read_block(path, offsets[0], sum(sizes), 1)[0]
        sending = [piece, (sizes, np.subtract(offsets, offsets[0]).tolist()), MPI.BYTE]
        cost = Cost(len(piece), 1, sum(sizes[1:]), group.size - 1)
    group.Scatterv(sending, [mine, MPI.BYTE])
    group.Free()
    return mine, cost


def write_shards(folder: Path, images: np.ndarray, labels: np.ndarray, per_shard: int) -> list[Path]:
    """Pack samples into shards of `per_shard` samples each, in order; return the paths. One process calls it."""
    paths = []
    for first in range(0, len(images), per_shard):
        path = folder / f"shard-{first // per_shard:04}.tar"
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
