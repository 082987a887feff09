"""What a step takes on one rank, as the meter reads it or a formula gives it: shards, bytes, arithmetic, memory.

Imports neither PyTorch nor NumPy, so that a forecast without them is quick.
"""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from workshop_lib.errors import InputError

# Of n bytes, what a rank of p sends in a ring (Patarasuk and Yuan 2009; arXiv:1910.02054, section 7).
RING = {"allreduce": 2, "allgather": 1, "reduce-scatter": 1}  # times (p - 1) / p


def mesh_shape(mesh: str) -> tuple[int, ...]:
    """(64, 16) of "64x16". Raises InputError for anything else."""
    if not re.fullmatch(r"[1-9]\d{0,5}(x[1-9]\d{0,5})*", mesh):
        raise InputError(f"the mesh {mesh!r} is not known: give its dimensions as in 64x16.")
    return tuple(map(int, mesh.split("x")))


def ranks_of(mesh: str) -> int:
    return math.prod(mesh_shape(mesh))


@dataclass
class Shard:
    """A parameter, and the part of it on this rank; placements: "S(0)" where a mesh's dimension cuts dimension 0."""

    name: str
    shape: list[int]
    local_shape: list[int]
    placements: list[str]


@dataclass
class Collective:
    """The calls of one kind over one dimension of the mesh. handed_bytes are those of the whole arrays: what goes into
    an allreduce or a reduce-scatter, and what comes out of an allgather."""

    kind: str
    over: str
    ranks: int
    calls: int = 0
    handed_bytes: float = 0

    @property
    def sent_bytes(self) -> float:
        """What this rank sends if each is a ring."""
        share = RING[self.kind] * (self.ranks - 1) / self.ranks if self.kind in RING else 1.0
        return share * self.handed_bytes


@dataclass
class Report:
    """One step on one rank. state_bytes: of parameters, gradients and optimizer, as the step ends. peak_bytes: the most
    that all tensors took together during it, so with activations, gathered layers and the script's data."""

    rank: int
    world_size: int
    shards: list[Shard]
    state_bytes: dict[str, int]
    peak_bytes: int
    flops: int
    collectives: list[Collective] = field(default_factory=list)
    fake_tensors: bool = False
    seconds: float = 0.0  # of the whole dry run, with Python's start
    resident_bytes: int = 0  # of its process, at most

    @classmethod
    def read(cls, path: Path) -> "Report":
        content = json.loads(path.read_text(encoding="utf-8"))
        shards = [Shard(**each) for each in content.pop("shards")]
        return cls(shards=shards, collectives=[Collective(**each) for each in content.pop("collectives")], **content)

    @property
    def other_bytes(self) -> int:
        """At the peak, besides the model's states: activations, gathered layers, the script's data."""
        return self.peak_bytes - sum(self.state_bytes.values())

    def sent_bytes(self, over: str = "") -> float:
        """By this rank in the step, in all or over one dimension of the mesh."""
        return sum(each.sent_bytes for each in self.collectives if over in ("", each.over))
