"""What the trainer needs of a backend: how its ranks talk to each other, and what computes on each of them.

`Communicator` joins the ranks of one run. `Backend` adds a name and the learner of its framework. What a
PyTorch backend changes in a training step is in pytorch.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, SupportsFloat

import numpy as np

from workshop_lib.training.world import World

if TYPE_CHECKING:  # so that the types are known without PyTorch
    import torch

    from workshop_lib.data.mnist import Split


class Communicator:
    """The ranks of one run; this class itself is for one process, which has nobody to talk to.

    All ranks call every method, in the same order.
    """

    def __init__(self, world: World, device: torch.device):
        self.world, self.device = world, device

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum of each float64 or int64 value over the ranks, the same on every rank. Blocks."""
        return values

    def allgather(self, value) -> list:
        """The (picklable) value of each rank, by rank, on every rank. Blocks."""
        return [value]

    def close(self) -> None:
        """Called once, after the run or its failure."""


class Backend(Communicator):
    """The communicator of a run, and the learner that its framework trains with."""

    name: ClassVar[str]
    framework: ClassVar[str]
    # What carries the messages, where a backend can choose: gloo, nccl or mpi.
    transport: str | None = None
    # Seconds this rank spent averaging gradients; None where they cannot be told apart.
    communication_s: float | None = None
    # time.perf_counter() when this rank entered and left the last averaging's blocking collective;
    # None where there is none, or where it overlaps with backward.
    averaging_span: tuple[float, float] | None = None

    def learner(self, options, train: Split, test: Split) -> Learner:
        """What computes on this rank. All ranks call it together: they then have the weights of rank 0."""
        raise NotImplementedError


class Learner(Protocol):
    """The network, the optimizer and the data of one rank."""

    live_bytes: dict[str, int] | None  # this rank's bytes of the model's states (memory.py), None if unknown

    def step(self, indices: np.ndarray, n_global: int, lr: float) -> SupportsFloat:
        """One optimizer step on the mean loss over a global batch of n_global samples, of which `indices` are
        this rank's. Returns their summed loss, which a GPU may still be computing: float() waits for it."""

    def reset_sums(self) -> None:
        """Begin to sum for a new epoch."""

    def sums(self) -> np.ndarray:
        """Summed loss, correct answers and samples of this rank since reset_sums(): float64 [3]. Waits until
        a GPU has done all steps."""

    def evaluate(self) -> np.ndarray:
        """The same sums, of this rank's test samples. All ranks call it."""

    def weights(self) -> list[np.ndarray]:
        """All parameters, whole. All ranks call it."""

    def state(self) -> dict[str, Any]:
        """For a checkpoint, what all ranks have in common: "model" and "optimizer". All ranks call it."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned, on any number of ranks."""

    def own_state(self) -> dict[str, Any]:
        """For a checkpoint, what belongs to this rank: at least "sums"."""

    def load_own_state(self, own: dict[str, Any]) -> None:
        """Go on from what `own_state` returned, or from "sums" alone."""
