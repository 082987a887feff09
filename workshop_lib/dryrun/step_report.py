"""What a step takes on one rank, as the meter read it: shards, bytes, arithmetic, memory; and its tables.

12_thousand_ranks compares the reports of real and pretended ranks. This file doesn't import PyTorch, so that a notebook
doesn't have to wait for it.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from workshop_lib.forecast.forecast import Collective
from workshop_lib.forecast.meshes import Work

KIND_OF = {"parameters": "weights", "gradients": "gradients", "optimizer": "optimizer's state"}


@dataclass
class Shard:
    """A parameter, and the part of it on this rank.

    placements: one per dimension of the mesh, "S(0)" for example if it cuts dimension 0 of the parameter.
    """

    name: str
    shape: list[int]
    local_shape: list[int]
    placements: list[str]


@dataclass(kw_only=True)
class Report(Work):
    """What one step took on one rank.

    state_bytes: bytes of the parameters, the gradients and the optimizer's state when the step ends. peak_bytes: the
    most bytes of all tensors together during the step, including activations, gathered layers and the script's data.
    """

    rank: int
    world_size: int
    shards: list[Shard] = field(default_factory=list)
    state_bytes: dict[str, int] = field(default_factory=dict)
    fake_tensors: bool = False
    fallback_reason: str = ""  # why the dry run needed real tensors, if it did
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

    def sent_bytes(self, over: str = "") -> float:
        """Bytes that this rank sends in the step, in all or over one dimension of the mesh."""
        return sum(each.sent_bytes for each in self.collectives if over in ("", each.over))

    def shard_rows(self) -> list[dict[str, str]]:
        """The parameters and this rank's parts. Parameters that differ only in their layer's number share a row."""
        alike: dict[tuple, list[str]] = {}
        for each in self.shards:
            cut = ", ".join(re.findall(r"S\((\d+)", " ".join(each.placements))) or "whole"
            key = (re.sub(r"\d+", "*", each.name, count=1), _shape(each.shape), _shape(each.local_shape), cut)
            alike.setdefault(key, []).append(each.name)
        return [
            {
                "parameter": name if len(names) > 1 else names[0],
                "of these": str(len(names)),
                "whole": whole,
                "on this rank": local,
                "cut along": cut,
            }
            for (name, whole, local, cut), names in alike.items()
        ]

    def memory_rows(self) -> list[dict[str, str]]:
        """The memory of each kind of state, the rest of the step's peak, this peak, and that of building, in MB."""
        sizes: dict[str, float] = {KIND_OF[kind]: size for kind, size in self.state_bytes.items()}
        sizes["the rest of the peak"] = self.peak_bytes - sum(self.state_bytes.values())
        sizes |= {"peak": self.peak_bytes, "peak before the first forward pass": self.building_peak_bytes}
        return [{"memory": kind, "MB": f"{size / 1e6:,.3f}"} for kind, size in sizes.items()]

    def collective_rows(self) -> list[dict[str, str]]:
        return [
            {
                "collective": each.kind,
                "over": each.over,
                "ranks": f"{each.ranks:,}",
                "calls": f"{each.calls:,}",
                "handed, MB": f"{each.handed_bytes / 1e6:,.3f}",
                "sent by this rank, MB": f"{each.sent_bytes / 1e6:,.3f}",
            }
            for each in self.collectives
        ]


def _shape(shape: list[int]) -> str:
    return " × ".join(map(str, shape)) or "1"
