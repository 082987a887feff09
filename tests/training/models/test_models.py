"""Dropout drawn by workers has the same masks on any number of ranks; the flat network is the network; what the
vision transformer's parts do."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.training.data import mnist
from workshop_lib.training.models import torch_cnn, vit
from workshop_lib.training.models.dropout import Dropout, WorkerDraws
from workshop_lib.training.models.flat import FlatNetwork

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


def test_the_vision_transformer_has_the_shapes_and_parameters_that_it_names():
    model, shapes = torch_cnn.build(1, "vit", classes=7), []
    x = torch.zeros(3, 1, 28, 28)
    for part in model:
        x = part(x)
        shapes.append(tuple(x.shape))
    tokens, w = 25, vit.WIDTH
    assert shapes == [(3, tokens, w)] * (1 + vit.DEPTH) + [(3, 7)]
    block = 4 * w * w + 3 * w + (w * 4 * w + 4 * w) + (4 * w * w + w) + 2 * 2 * w
    ends = 8 * 8 * w + w + tokens * w, 2 * w + 10 * w + 10
    total = sum(p.numel() for p in torch_cnn.build(1, "vit").parameters())
    assert total == sum(ends) + vit.DEPTH * block == 156_298


def test_a_token_sees_its_patch_and_its_place():
    tokens, images = vit.Tokens(6), torch.zeros(1, 1, 28, 28)
    nothing = tokens(images)
    images[0, 0, 9, 26] = 1.0  # in the second row of patches alone, and in the last column alone
    changed = (tokens(images) != nothing).any(2).flatten()
    assert changed.nonzero().flatten().tolist() == [9]
    assert not torch.equal(nothing[0, 0], nothing[0, 1]), "equal patches in different places"


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_pytorch_s(causal):
    attention, x = vit.Attention(12, heads=3, causal=causal), torch.randn(2, 5, 12)
    query, key, value = (attention.by_head(layer(x)) for layer in (attention.query, attention.key, attention.value))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    assert torch.allclose(attention(x), attention.out(expected.transpose(1, 2).reshape(2, 5, 12)), atol=1e-6)


def test_weights_gradient_and_accuracy_are_those_of_the_network():
    train, test = mnist.load("train"), mnist.load("test")
    flat, plain = FlatNetwork(seed=3), torch_cnn.build(seed=3)
    weights = flat.weights()
    assert np.array_equal(weights, np.concatenate([p.detach().numpy().ravel() for p in plain.parameters()]))
    first = flat.gradient(weights, train.images[:20], train.labels[:20])
    kept = first.copy()
    for rows in (slice(0, 20), slice(20, 30)):  # the second must not add to the first
        found = flat.gradient(weights, train.images[rows], train.labels[rows])
        plain.zero_grad()
        images = torch_cnn.normalize(torch.tensor(train.images[rows]))
        cross_entropy(plain(images), torch.tensor(train.labels[rows]).long()).backward()
        expected = np.concatenate([p.grad.numpy().ravel() for p in plain.parameters()])
        assert np.allclose(found, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())
    assert np.array_equal(first, kept), "it isn't changed later"
    assert np.array_equal(flat.weights(), weights)
    with torch.no_grad():
        images = torch_cnn.normalize(torch.tensor(test.images[:700]))
        right = (plain(images).argmax(dim=1).numpy() == test.labels[:700]).mean()
    assert flat.accuracy(test.images[:700], test.labels[:700]) == right
