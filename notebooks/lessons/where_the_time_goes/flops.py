"""Floating-point operations: 08b_where_the_time_goes asks how many a sample takes, and how many this processor does.

This file also measures which of a network's layers wait for memory instead of computing (the roofline of S. Williams,
A. Waterman and D. Patterson, CACM 52, 2009).
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from workshop_lib.training.models import torch_cnn, vit

# Side of a square matrix, and length of arrays that no cache can hold.
SIDE = 512
NUMBERS = 8_000_000
FLOAT_BYTES = 4


class Limits(NamedTuple):
    """Measured peak rates of one process in fp32."""

    flops_per_s: float
    bytes_per_s: float


class Layer(NamedTuple):
    """The forward pass of one layer on one batch. moved_bytes counts its input, weights and output once each."""

    network: str
    layer: str
    flops: int
    moved_bytes: int
    seconds: float


def limits(repeats: int = 40) -> Limits:
    """Measure the peak rates of this process with its current number of threads."""
    a, b, product = (torch.rand(SIDE, SIDE) for _ in range(3))
    x, y, total = (torch.rand(NUMBERS) for _ in range(3))
    product_s = _fastest(lambda: torch.mm(a, b, out=product), repeats)
    sum_s = _fastest(lambda: torch.add(x, y, out=total), repeats)
    return Limits(2 * SIDE**3 / product_s, 3 * FLOAT_BYTES * NUMBERS / sum_s)


def per_sample(network: str) -> int:
    """Return the number of operations for one MNIST image, forward and backward pass together.

    A multiply-add counts as two operations.
    """
    model = torch_cnn.build(0, network).eval()
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 1, *vit.MNIST)).sum().backward()
    return counter.get_total_flops()


def layers(network: str, batch: int = 64, repeats: int = 20) -> list[Layer]:
    """Time every layer with weights in one of the workshop's networks, each layer alone.

    Layers with the same numbers of inputs and outputs, in either order, take the same operations and bytes, so only the
    first of them is returned.
    """
    model = torch_cnn.build(0, network)
    inputs: dict[str, torch.Tensor] = {}
    kept: dict[frozenset[int], Layer] = {}

    def note(name: str) -> Callable:
        return lambda layer, given: inputs.setdefault(name, given[0])

    with_weights = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)}
    hooks = [layer.register_forward_pre_hook(note(name)) for name, layer in with_weights.items()]
    with torch.no_grad():
        model(torch_cnn.normalize(torch.zeros(batch, *vit.MNIST, dtype=torch.uint8)))
        for hook in hooks:
            hook.remove()
        for name, layer in with_weights.items():
            given = inputs[name]
            with FlopCounterMode(display=False) as counter:
                output = layer(given)
            numbers = given.numel() + output.numel() + sum(weight.numel() for weight in layer.parameters())
            seconds = _fastest(lambda layer=layer, given=given: layer(given), repeats)
            numbers_out, numbers_in = layer.weight.shape[:2]
            shown = f"{type(layer).__name__} {numbers_in} to {numbers_out}"
            timed = Layer(network, shown, counter.get_total_flops(), FLOAT_BYTES * numbers, seconds)
            kept.setdefault(frozenset(layer.weight.shape), timed)
    return list(kept.values())


def _fastest(action: Callable, repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return float(np.min(seconds[1:]))  # the first run does not count, because it allocates memory
