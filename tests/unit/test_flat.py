"""The network as a function of one vector: its gradients are those of the network as it is."""

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist
from workshop_lib.models import torch_cnn
from workshop_lib.models.flat import FlatNetwork


def test_weights_gradient_and_accuracy_are_those_of_the_network():
    train, test = mnist.load("train"), mnist.load("test")
    flat, plain = FlatNetwork(seed=3), torch_cnn.build(seed=3)
    weights = flat.weights()
    assert np.array_equal(weights, np.concatenate([p.detach().numpy().ravel() for p in plain.parameters()]))
    for rows in (slice(0, 20), slice(20, 30)):  # the second must not add to the first
        found = flat.gradient(weights, train.images[rows], train.labels[rows])
        plain.zero_grad()
        images = torch_cnn.normalise(torch.tensor(train.images[rows]))
        cross_entropy(plain(images), torch.tensor(train.labels[rows]).long()).backward()
        expected = np.concatenate([p.grad.numpy().ravel() for p in plain.parameters()])
        assert np.allclose(found, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())
    assert np.array_equal(flat.weights(), weights)
    with torch.no_grad():
        images = torch_cnn.normalise(torch.tensor(test.images[:700]))
        right = (plain(images).argmax(dim=1).numpy() == test.labels[:700]).mean()
    assert flat.accuracy(test.images[:700], test.labels[:700]) == right


def test_what_it_returns_is_not_changed_later():
    train = mnist.load("train")
    flat = FlatNetwork(seed=1)
    weights = flat.weights()
    kept = weights.copy()
    gradient = flat.gradient(weights, train.images[:5], train.labels[:5])
    earlier = gradient.copy()
    flat.gradient(weights - gradient, train.images[5:9], train.labels[5:9])
    assert np.array_equal(gradient, earlier)
    assert np.array_equal(weights, kept)
