"""Dropout drawn by workers: the same masks however many processes do their work."""

import pytest
import torch

from workshop_lib.models import torch_cnn
from workshop_lib.models.dropout import Dropout, WorkerDraws

CPU = torch.device("cpu")


def masked(workers, world_size, n_global, steps=2):
    """What all ranks together make of ones, in the last of some steps."""
    parts = []
    for rank in range(world_size):
        layers = torch.nn.Sequential(Dropout(0.25), Dropout(0.5))
        draws = WorkerDraws(layers, 7, workers, rank, world_size, CPU)
        rows = (rank + 1) * n_global // world_size - rank * n_global // world_size
        for _ in range(steps):
            draws.prepare(n_global)
            found = layers(torch.ones(rows, 5))
        parts.append(found)
    return torch.cat(parts)


@pytest.mark.parametrize("n_global", [64, 61, 3])
@pytest.mark.parametrize(("workers", "ranks"), [(8, 1), (8, 2), (8, 4), (2, 4), (1, 2)])
def test_as_on_as_many_ranks_as_workers(workers, ranks, n_global):
    assert torch.equal(masked(workers, ranks, n_global), masked(workers, workers, n_global))


def test_a_batch_in_parts_has_the_same_masks():
    layer = Dropout()
    found = []
    for parts in (6, 4):
        layer.draw([(torch.Generator().manual_seed(1), 6, slice(None))])
        found.append(torch.cat([layer(part) for part in torch.ones(6, 5).split(parts)]))
    assert torch.equal(*found)


def test_workers_draw_differently_and_in_each_step_anew():
    first, second = masked(2, 2, 64).split(32)
    assert not torch.equal(first, second)
    assert not torch.equal(masked(2, 2, 64, steps=1), masked(2, 2, 64, steps=2))


def test_what_is_kept_is_scaled_and_its_share_is_right():
    layer = Dropout(0.25)
    layer.draw([(torch.Generator().manual_seed(1), 400, slice(None))])
    values, counts = layer(torch.ones(400, 50)).unique(return_counts=True)
    assert values.tolist() == pytest.approx([0, 4 / 3])
    assert counts[1] / 20_000 == pytest.approx(0.75, abs=0.01)  # three standard deviations
    assert torch.equal(layer.eval()(values), values)


def test_channels_are_dropped_whole():
    layer = Dropout(channels=True)
    layer.draw([(torch.Generator().manual_seed(1), 8, slice(None))])
    found = layer(torch.ones(8, 6, 3, 3)).flatten(2)
    assert torch.equal(found.amin(2), found.amax(2)) and len(found.unique()) == 2


def test_the_classic_network_has_the_published_size():
    model = torch_cnn.build(1, "classic")
    assert sum(p.numel() for p in model.parameters()) == 21_840
    assert sum(isinstance(layer, Dropout) for layer in model) == 2
