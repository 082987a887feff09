"""Dry runs and forecasts as rows, for the tables of 12_thousand_ranks and of `workshop dryrun`."""

import re
from collections.abc import Callable, Iterable, Mapping

from workshop_lib.lessons.thousand_ranks import meshes
from workshop_lib.lessons.thousand_ranks.meshes import Forecast, Gpt
from workshop_lib.lessons.thousand_ranks.step_report import Report, Shard, mesh_shape
from workshop_lib.machine.catalogue import Machine

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
    """The memory of each kind of state, the rest of the step's peak, this peak, and that of building, in MB."""
    sizes: dict[str, float] = {KIND_OF[kind]: size for kind, size in report.state_bytes.items()}
    sizes |= {"the rest of the peak": report.other_bytes, "peak": report.peak_bytes}
    sizes["peak before the first forward pass"] = report.building_peak_bytes
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


def beside_formula(mesh_bytes: Callable, runs: Mapping[str, Report], width: int, tokens: int, layers: int, batch: int):
    """What the learner's `mesh_bytes` gives for this GPT, and what dry runs sent, in MB per dimension: one row each.

    runs: dry runs of mesh.py in fp32 by the shape of their mesh. The embedding, the last layer and the last norm are
    added to the learner's bytes: FSDP gathers them only once per step.
    """
    cut_bytes = 4 * (12 * width**2 + 4 * width)
    whole_bytes = 4 * 5 * width
    ends_bytes = 4 * (2 * 256 * width + 256 + 2 * width)
    rows = {}
    for shape, run in runs.items():
        data, tensor = mesh_shape(shape)
        activations_bytes = 4 * batch / data * tokens * width
        formula = mesh_bytes(data, tensor, layers, cut_bytes, whole_bytes, activations_bytes)
        over_data = formula["data"] + 2 * (data - 1) / data * ends_bytes
        rows[f"{shape}, your function, MB"] = {"data": over_data / 1e6, "tensor": formula["tensor"] / 1e6}
        rows[f"{shape}, dry run, MB"] = {over: run.sent_bytes(over) / 1e6 for over in ("data", "tensor")}
    return rows


def forecast_row(made: Forecast) -> dict[str, float]:
    """The columns of a forecast: seconds, utilization, and memory in GB."""
    return {
        "compute_s": made.compute_s,
        "tensor_s": made.tensor_s,
        "data_s": made.data_s,
        "late_s": made.late_s,
        "step_s": made.step_s,
        "mfu": made.mfu,
        "peak_GB": made.peak_bytes / 1e9,
    }


def forecasts(
    model: Gpt, machine: Machine, ranks: int, global_batch: int, precision: str = "bf16"
) -> list[dict[str, object]]:
    """The forecast of each mesh and plan that is worth a look, one row each.

    Raises InputError if the precision is FP8 and the machine can't multiply in FP8.
    """
    rows = []
    for mesh, plan in meshes.plans(model, ranks, global_batch, precision):
        made = meshes.of_formulas(model, machine, mesh, plan)
        row = {
            "data": mesh.data,
            "tensor": mesh.tensor,
            "pipeline": mesh.pipeline,
            "micro-batches": f"{plan.micro_batches} of {plan.micro_batch}",
            "recompute": plan.recompute,
            "step_s": made.step_s,
            "mfu": made.mfu,
            "peak_GB": made.peak_bytes / 1e9,
        }
        rows.append(row)
    return rows
