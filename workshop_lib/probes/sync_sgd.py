"""Rank side of the exercises in 02_synchronous_sgd."""

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.models import torch_cnn

ROWS = 16  # images a rank


def average_gradients(comm, function) -> dict:
    """Two calls: on ranks with the same weights, as in training; and on ranks whose weights differ, which
    shows whether weights are averaged.
    """
    images, labels = _batch(ROWS * comm.size)
    mine = slice(ROWS * comm.rank, ROWS * (comm.rank + 1))
    model = torch_cnn.build(seed=1)
    cross_entropy(model(images), labels).backward()
    whole = _gradients(model)
    model.zero_grad()
    cross_entropy(model(images[mine]), labels[mine]).backward()
    own = _gradients(model)
    function(model, comm)

    other = torch_cnn.build(seed=comm.rank)
    before = _weights(other)
    cross_entropy(other(images[mine]), labels[mine]).backward()
    function(other, comm)
    after = _weights(other)
    return {
        "whole": whole,
        "own": own,
        "got": _gradients(model),
        "weights_kept": all((before[name] == after[name]).all() for name in before),
    }


def broadcast_weights(comm, function) -> dict:
    """One call on ranks whose weights differ."""
    model = torch_cnn.build(seed=10 + comm.rank)
    own = _weights(model)
    function(model, comm)
    return {"own": own, "got": _weights(model)}


def weighted_mean(comm, function) -> dict[str, dict]:
    """Two calls: every rank with another number of samples, and rank 1 with none. `returned` should be
    `right`, the mean of one vector for each sample.
    """
    uneven = [comm.size + 1 + 2 * rank for rank in range(comm.size)]
    found = {}
    for case, counts in {"uneven": uneven, "none": [uneven[0], 0, *uneven[2:]][: comm.size]}.items():
        of_samples = np.random.default_rng(5).normal(size=(sum(counts), 6))
        first = sum(counts[: comm.rank])
        own = of_samples[first : first + counts[comm.rank]]
        gradient = own.mean(axis=0) if len(own) else np.zeros(6)
        given = gradient.copy()
        returned = function(given, len(own), comm)
        found[case] = {
            "returned": returned,
            "right": of_samples.mean(axis=0),
            "own": gradient,
            "n_samples": len(own),
            "unchanged": np.array_equal(given, gradient),
        }
    return found


def _batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same random images and labels on every rank."""
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(rows, 1, 28, 28, generator=generator)
    return images, torch.randint(10, (rows,), generator=generator)


def _weights(model) -> dict:
    return {name: p.detach().clone().numpy() for name, p in model.named_parameters()}


def _gradients(model) -> dict:
    """Each parameter's gradient; None where there is none."""
    return {name: None if p.grad is None else p.grad.clone().numpy() for name, p in model.named_parameters()}
