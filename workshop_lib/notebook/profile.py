"""The sizes of a notebook's runs, chosen in one place by WORKSHOP_PROFILE."""

import os
from dataclasses import dataclass, replace

from workshop_lib.errors import InputError
from workshop_lib.ranks.launch import allocation

VARIABLE = "WORKSHOP_PROFILE"
DEFAULT = "laptop"


@dataclass(frozen=True)
class Profile:
    """The sizes of a notebook's runs.

    The sweep has sizes of its own, because it trains ranks × backends × repeats times.
    """

    name: str
    ranks: int  # this many ranks have a core (or GPU) each
    oversubscribed_ranks: int | None  # more ranks than cores, to show what that costs; None leaves it out
    epochs: int
    train_samples: int | None  # None: all 60,000
    sweep_epochs: int  # at least 2: the first pays for start-up and is left out of the curve
    sweep_samples: int | None
    repeats: int  # runs of each point of a sweep, whose spread is drawn
    steps: int  # steps of a short run that is compared, not timed
    timeout_s: float  # limit for one run on the ranks
    feed_copies: int  # copies of the training images (47 MB each) in the file that the ranks read
    feed_batches: int  # batches per rank in one epoch of a training run fed from the file of images

    @property
    def ranks_here(self) -> int:
        """As many of `ranks` as this host has, for programs that start processes on this host only."""
        nodes = allocation.find()
        return min(self.ranks, nodes.ranks_on_a_node(self.ranks)) if nodes else self.ranks

    @property
    def sweep_ranks(self) -> list[int]:
        """1, 2, 4, … up to `ranks`, then `oversubscribed_ranks`."""
        counts = {2**power for power in range(self.ranks.bit_length())} | {self.ranks}
        return sorted(counts | {self.oversubscribed_ranks or self.ranks})


PROFILES = {
    "quick": Profile("quick", 2, None, 2, 3_000, 2, 1_500, 2, 10, 60, 1, 6),
    "laptop": Profile("laptop", 2, 4, 3, None, 2, 4_000, 5, 50, 120, 4, 12),
    # For 8 to 64 GPUs.
    "cluster": Profile("cluster", 8, None, 3, None, 2, None, 3, 50, 300, 16, 24),
}


def current() -> Profile:
    """The profile that WORKSHOP_PROFILE names, or "laptop" if it is unset. Raises InputError for an unknown name.

    In a scheduler's allocation, "cluster" has as many ranks as fill the allocation.
    """
    name = os.environ.get(VARIABLE, DEFAULT)
    if name not in PROFILES:
        raise InputError(
            f"{VARIABLE}={name!r} is not a profile; set it to {', '.join(PROFILES)}, or leave it unset for {DEFAULT}."
        )
    if name == "cluster" and (nodes := allocation.find()):
        return replace(PROFILES[name], ranks=nodes.ranks())
    return PROFILES[name]
