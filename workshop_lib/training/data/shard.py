"""Which rank sees which sample.

The ranks' shards are disjoint and cover the data, and a global batch has the same samples for any number of ranks.
Everything here uses the *global* rank. Sharding by local_rank would give the same samples to every node, and an epoch
would no longer cover the data.
"""

from collections.abc import Iterator

import numpy as np

from workshop_lib.errors import InputError


def shard_bounds(size: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the rows [start, stop) of `size` rows that belong to `rank`. The ranks' lengths differ by at most one.

    Raises InputError unless 0 <= rank < world_size.
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise InputError(f"rank {rank} of {world_size} ranks: needs 0 <= rank < world_size")
    return size * rank // world_size, size * (rank + 1) // world_size


def parts(size: int, world_size: int) -> list[slice]:
    """Return the rows of every rank: `size` rows cut into consecutive slices, one per rank."""
    return [slice(*shard_bounds(size, rank, world_size)) for rank in range(world_size)]


def steps_per_epoch(size: int, batch_size: int, world_size: int) -> int:
    """Return the number of optimizer steps in one epoch.

    Each step takes a global batch of batch_size x world_size samples, and the last one takes what is left.
    """
    return -(-size // (batch_size * world_size))


def epoch_permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of all `size` samples in this epoch (int64 [size]), the same on every rank."""
    return np.random.default_rng([seed, epoch]).permutation(size)


def epoch_batches(
    size: int, batch_size: int, rank: int, world_size: int, seed: int, epoch: int, start_step: int = 0
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield this rank's part of each global batch of the epoch, from `start_step` (0-based) on.

    Each item is (indices int64 [n_local], n_global). Together the ranks hold exactly the samples that one process with
    a batch size of batch_size x world_size would see in that step, so training does not depend on the number of ranks.
    If the global batch does not divide `size`, the last global batch is smaller and is split as evenly as possible.
    n_local may then differ between ranks, and is 0 on some ranks if there are fewer samples than ranks. Every rank
    yields the same number of batches, because otherwise a collective in the training step would wait forever.
    """
    order = epoch_permutation(size, seed, epoch)
    global_batch = batch_size * world_size
    for first in range(start_step * global_batch, size, global_batch):
        batch = order[first : first + global_batch]
        start, stop = shard_bounds(len(batch), rank, world_size)
        yield batch[start:stop], len(batch)
