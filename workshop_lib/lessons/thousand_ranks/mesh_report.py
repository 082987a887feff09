"""A dry run's report as rows of text, for the tables of 12_thousand_ranks and of `workshop dryrun`."""

import re
from collections.abc import Iterable

from workshop_lib.lessons.thousand_ranks.step_report import Report, Shard

KIND_OF = {"parameters": "weights", "gradients": "gradients", "optimizer": "optimizer's state"}


def shards(report: Report) -> list[dict[str, str]]:
    """The parameters and this rank's parts of them. Parameters that differ only in their layer's number share a row."""
    alike: dict[tuple, list[Shard]] = {}
    for shard in report.shards:
        name = re.sub(r"\d+", "*", shard.name, count=1)
        alike.setdefault((name, *map(str, (shard.shape, shard.local_shape, shard.placements))), []).append(shard)
    return [_shard_row(name if len(group) > 1 else group[0].name, group) for (name, *_), group in alike.items()]


def _shard_row(name: str, group: list[Shard]) -> dict[str, str]:
    first = group[0]
    return {
        "parameter": name,
        "of these": str(len(group)),
        "whole": _shape(first.shape),
        "on this rank": _shape(first.local_shape),
        "cut along": ", ".join(re.findall(r"S\((\d+)", " ".join(first.placements))) or "whole",
    }


def _shape(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape)) or "1"


def memory(report: Report) -> list[dict[str, str]]:
    """The memory of each kind of state, the rest of the peak, and the peak, in MB."""
    sizes = {KIND_OF[kind]: size for kind, size in report.state_bytes.items()}
    sizes["the rest of the peak"] = report.other_bytes
    sizes["peak"] = report.peak_bytes
    return [{"memory": kind, "MB": f"{size / 1e6:,.3f}"} for kind, size in sizes.items()]


def collectives(report: Report) -> list[dict[str, str]]:
    return [
        {
            "collective": each.kind,
            "over": each.over,
            "ranks": f"{each.ranks:,}",
            "calls": f"{each.calls:,}",
            "handed, MB": f"{each.handed_bytes / 1e6:,.3f}",
            "sent by this rank, MB": f"{each.sent_bytes / 1e6:,.3f}",
        }
        for each in report.collectives
    ]


def cost(report: Report) -> str:
    """A sentence about the time and memory that the dry run itself took."""
    values = "without values" if report.fake_tensors else "with real tensors, whose values mean nothing"
    return f"The dry run took {report.seconds:.1f} s and {report.resident_bytes / 2**20:,.0f} MiB, {values}."
