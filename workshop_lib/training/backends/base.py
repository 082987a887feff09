"""What the trainer needs from a backend: how its ranks talk to each other, and what computes on each of them.

`Communicator` joins the ranks of one run. `Backend` adds a name and the replica of its framework. See pytorch.py for
what a PyTorch backend changes in a training step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, SupportsFloat

import numpy as np

from workshop_lib.machine.world import World

if TYPE_CHECKING:  # this file names PyTorch's types but does not need PyTorch
    import torch

    from workshop_lib.training.data.mnist import Split


CollectiveSpan = tuple[float, float]  # time.perf_counter() when a rank entered and left a blocking collective


class Communicator:
    """The ranks of one run and how they talk. This base class is for one process, which has nobody to talk to.

    All ranks call every method, in the same order.
    """

    def __init__(self, world: World, device: torch.device):
        self.world = world
        self.device = device

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return each float64 or int64 value summed over the ranks, the same on every rank. Blocks."""
        return values

    def allgather(self, value) -> list:
        """Return the (picklable) values of all ranks, in rank order, on every rank. Blocks."""
        return [value]

    def close(self) -> None:
        """Clean up. The trainer calls this once, after the run has ended or failed."""


class Backend(Communicator):
    """The communicator of a run, which also creates the replica of its framework."""

    name: ClassVar[str]
    framework: ClassVar[str]
    # What carries the messages if PyTorch does: gloo, nccl, xccl or mpi. None for other backends.
    transport: str | None = None

    def replica(self, options, train: Split, test: Split) -> Replica:
        """Return what computes on this rank. All ranks call it together, and all start with the weights of rank 0."""
        raise NotImplementedError


class StepResult(NamedTuple):
    """What a step gives the trainer.

    loss_sum: summed over this rank's samples. A GPU may still be computing it, and float() waits for it. averaging: the
    collective that averaged the gradients, None if there is none, or if it overlaps with the backward pass.
    """

    loss_sum: SupportsFloat
    averaging: CollectiveSpan | None = None


class Replica(Protocol):
    """The network, the optimizer and the data of one rank."""

    live_bytes: dict[str, int] | None  # this rank's bytes of the model's states (memory.py), None if unknown

    def step(self, indices: np.ndarray, n_global: int, lr: float) -> StepResult:
        """Do one optimizer step on the mean loss over a global batch of n_global samples. All ranks call it.

        indices: int64 [n_local], this rank's samples.
        """

    def reset_sums(self) -> None:
        """Set the sums to zero for a new epoch."""

    def sums(self) -> np.ndarray:
        """Return this rank's summed loss, correct answers and samples since reset_sums(): float64 [3].

        If this rank has a GPU, waits until the GPU has done all steps.
        """

    def evaluate(self) -> np.ndarray:
        """Return the same three sums for this rank's test samples. All ranks call it."""

    def weights(self) -> list[np.ndarray]:
        """Return all parameters, whole even if they are sharded. All ranks call it."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores once for all ranks: "model" and "optimizer". All ranks call it."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned, on any number of ranks."""

    def own_state(self) -> dict[str, Any]:
        """Return what a checkpoint stores for this rank alone: at least "sums"."""

    def load_own_state(self, own: dict[str, Any]) -> None:
        """Continue from what `own_state` returned, or from "sums" alone."""
