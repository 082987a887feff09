"""Shards are disjoint, cover the data, and do not depend on the number of ranks."""

import numpy as np
import pytest

from workshop_lib.training.data.shard import epoch_batches, shard_bounds, steps_per_epoch

WORLD_SIZES = [1, 2, 3, 4, 5]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("size", [0, 1, 3, 10, 10_000, 10_001])
def test_bounds_cover_without_overlap(size, world_size):
    bounds = [shard_bounds(size, rank, world_size) for rank in range(world_size)]
    assert bounds[0][0] == 0 and bounds[-1][1] == size
    assert all(left[1] == right[0] for left, right in zip(bounds, bounds[1:], strict=False))
    lengths = [stop - start for start, stop in bounds]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_wrong_rank_is_refused(rank, world_size):
    with pytest.raises(ValueError, match=f"rank {rank} of {world_size} ranks"):
        shard_bounds(10, rank, world_size)


def batches_of_all_ranks(size, batch_size, world_size, epoch=1, start_step=0):
    """For each step, the list of every rank's (indices, n_global)."""
    ranks = [
        list(epoch_batches(size, batch_size, rank, world_size, 7, epoch, start_step)) for rank in range(world_size)
    ]
    return list(zip(*ranks, strict=True))  # strict: every rank has as many steps


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("size", [1, 59, 60, 61, 121, 1000])
def test_each_step_holds_the_samples_of_one_process(size, world_size):
    batch_size = 60 // world_size
    steps = batches_of_all_ranks(size, batch_size, world_size)
    one_process = list(epoch_batches(size, 60, 0, 1, 7, 1))
    assert len(steps) == len(one_process) == steps_per_epoch(size, batch_size, world_size)
    for step, (expected, n_expected) in zip(steps, one_process, strict=True):
        together = np.concatenate([indices for indices, _ in step])
        assert together.tolist() == expected.tolist()
        assert {n_global for _, n_global in step} == {n_expected}


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_an_epoch_sees_every_sample_once(world_size):
    steps = batches_of_all_ranks(1003, 32, world_size)
    seen = np.concatenate([indices for step in steps for indices, _ in step])
    assert sorted(seen.tolist()) == list(range(1003))


def test_epochs_differ_and_repeat():
    first, again = (batches_of_all_ranks(500, 50, 2, epoch=1) for _ in range(2))
    other = batches_of_all_ranks(500, 50, 2, epoch=2)
    assert first[0][0][0].tolist() == again[0][0][0].tolist() != other[0][0][0].tolist()


def test_start_step_continues_where_it_stopped():
    whole = batches_of_all_ranks(500, 40, 3)
    rest = batches_of_all_ranks(500, 40, 3, start_step=2)
    assert len(rest) == len(whole) - 2
    for step, expected in zip(rest, whole[2:], strict=True):
        for (indices, _), (expected_indices, _) in zip(step, expected, strict=True):
            assert indices.tolist() == expected_indices.tolist()
