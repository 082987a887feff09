"""What a step takes on one rank, measured by the meter or estimated by a formula: shards, bytes, arithmetic, memory.

12_thousand_ranks compares the reports of real and pretended ranks. This file imports neither PyTorch nor NumPy, so that
a forecast doesn't have to wait for them.
"""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from workshop_lib.errors import InputError

# In a ring of p ranks, each rank sends (p - 1) / p of the array's bytes this many times (Patarasuk and Yuan 2009;
# arXiv:1910.02054, section 7).
RING = {"allreduce": 2, "allgather": 1, "reduce-scatter": 1}


def mesh_shape(mesh: str) -> tuple[int, ...]:
    """The dimensions of a mesh as numbers, (64, 16) for "64x16". Raises InputError for text of any other form."""
    if not re.fullmatch(r"[1-9]\d{0,5}(x[1-9]\d{0,5})*", mesh):
        raise InputError(f"the mesh {mesh!r} is not known: give its dimensions as in 64x16.")
    return tuple(map(int, mesh.split("x")))


def ranks_of(mesh: str) -> int:
    return math.prod(mesh_shape(mesh))


@dataclass
class Shard:
    """A parameter, and the part of it on this rank.

    placements: one per dimension of the mesh, "S(0)" for example if it cuts dimension 0 of the parameter.
    """

    name: str
    shape: list[int]
    local_shape: list[int]
    placements: list[str]


@dataclass
class Collective:
    """All calls of one collective over one dimension of the mesh.

    handed_bytes: the bytes of the whole arrays, that is, what goes into an allreduce or a reduce-scatter, and what
    comes out of an allgather.
    """

    kind: str
    over: str
    ranks: int
    calls: int = 0
    handed_bytes: float = 0

    @property
    def sent_bytes(self) -> float:
        """Bytes that this rank sends if each call is a ring."""
        share = RING[self.kind] * (self.ranks - 1) / self.ranks if self.kind in RING else 1.0
        return share * self.handed_bytes


@dataclass
class Report:
    """What one step took on one rank. Shards and states are left out if it's estimated by a formula.

    state_bytes: bytes of the parameters, the gradients and the optimizer's state when the step ends. peak_bytes: the
    most bytes of all tensors together during the step, including activations, gathered layers and the script's data.
    flops: floating-point operations.
    """

    rank: int
    world_size: int
    shards: list[Shard]
    state_bytes: dict[str, int]
    peak_bytes: float
    flops: float
    collectives: list[Collective] = field(default_factory=list)
    fake_tensors: bool = False
    seconds: float = 0.0  # how long the dry run took; a report of `dry_run` includes Python's start
    step_s: float = 0.0  # the emulated time of the step, if the dry run was on a machine of the table
    compute_s: float = 0.0  # the part of it that is computing
    resident_bytes: int = 0  # the most memory that the dry run's process took
    building_peak_bytes: int = 0  # the most bytes of all tensors together before the first forward pass

    @classmethod
    def read(cls, path: Path) -> "Report":
        content = json.loads(path.read_text(encoding="utf-8"))
        shards = [Shard(**each) for each in content.pop("shards")]
        return cls(shards=shards, collectives=[Collective(**each) for each in content.pop("collectives")], **content)

    @property
    def other_bytes(self) -> float:
        """Bytes at the peak that aren't the model's states: activations, gathered layers and the script's data."""
        return self.peak_bytes - sum(self.state_bytes.values())

    def sent_bytes(self, over: str = "") -> float:
        """Bytes that this rank sends in the step, in all or over one dimension of the mesh."""
        return sum(each.sent_bytes for each in self.collectives if over in ("", each.over))
