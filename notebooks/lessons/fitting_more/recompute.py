"""What 06c_fitting_more measures: bytes and time of recomputation, and the gradients that a 16-bit format loses."""

import time
from collections.abc import Callable, Mapping

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib.training.collectives.traffic import Traffic
from workshop_lib.training.memory import storage_bytes, tensors

from lessons.fitting_more.saved import kept_for_backward
from lessons.zero_and_fsdp import by_hand

Run = Callable[[nn.Module, torch.Tensor], torch.Tensor]  # computes block(x)


def compare(blocks: nn.Sequential, x: torch.Tensor, ways: Mapping[str, Run]) -> pd.DataFrame:
    """Run the blocks one after another in each of these ways: one row for each way, with what it kept and how long it
    took. Raises AssertionError if two ways lead to different gradients."""
    rows = {}
    expected = None
    for title, run in ways.items():
        _step(blocks, x, run)  # warms up
        start = time.perf_counter()
        kept_bytes = _step(blocks, x, run)
        milliseconds = 1000 * (time.perf_counter() - start)
        gradient = torch.cat([p.grad.flatten() for p in blocks.parameters() if p.grad is not None])
        expected = gradient if expected is None else expected
        torch.testing.assert_close(gradient, expected)
        rows[title] = {"MiB kept for the backward pass": kept_bytes / 2**20, "ms per step": milliseconds}
    return pd.DataFrame(rows).T.round(1)


def _step(blocks: nn.Sequential, x: torch.Tensor, run: Run) -> int:
    """Compute the gradients of all blocks. Returns the bytes that the forward pass kept."""

    def forward() -> torch.Tensor:
        output = x
        for block in blocks:
            output = run(block, output)
        return output

    blocks.zero_grad()
    output, kept_bytes = kept_for_backward(forward, blocks)
    output.square().mean().backward()
    return kept_bytes


def gradient_of_a_trained_perceptron(steps: int = 32) -> torch.Tensor:
    """The gradients of all weights after a few steps, without those that are 0."""
    model = by_hand.perceptron()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        images, labels = by_hand.batch(step % 16)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return gradient[gradient != 0]


def rehearse(model: nn.Module) -> str:
    """Run one step of a perceptron that FSDP has sharded, and say what a rank holds and which collectives it calls."""
    images, _ = by_hand.batch()
    with Traffic() as traffic:
        model(images).sum().backward()
    parameters = list(model.parameters())
    whole_bytes = sum(p.nbytes for p in parameters)
    held_bytes = storage_bytes(tensors(parameters))
    lines = [f"1/{whole_bytes / held_bytes:.0f} of the weights per rank"]
    for name, calls in traffic.calls.items():
        lines.append(f"    {calls} {name}s of {traffic.handed_bytes[name] / whole_bytes:.2f} n bytes together")
    return "\n".join(lines)
