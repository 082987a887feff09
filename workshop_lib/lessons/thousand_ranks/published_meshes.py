"""Compare forecasts with published runs: 12_thousand_ranks asks how far off its forecasts are.

The runs, with their meshes and speeds, are in lessons/forecasting/published.toml.
"""

import functools
from dataclasses import dataclass

import pandas as pd

from workshop_lib.lessons.forecasting.published import PUBLISHED
from workshop_lib.lessons.thousand_ranks import meshes
from workshop_lib.lessons.thousand_ranks.meshes import Gpt, Mesh, Plan
from workshop_lib.lessons.thousand_ranks.step_report import mesh_shape
from workshop_lib.machine import catalogue


@dataclass(frozen=True)
class PublishedRun:
    """One published run of a table: what trained where, and its speed as model-FLOPs utilization.

    like: the name of the table whose first run tells what one device can do, either this table or a different one.
    """

    table: str
    like: str
    machine: catalogue.Machine
    model: Gpt
    mesh: Mesh
    plan: Plan
    mfu: float

    def forecast_mfu(self, share: float) -> float:
        """The forecast, if one device's arithmetic reaches this share of its peak."""
        return meshes.of_formulas(self.model, self.machine, self.mesh, self.plan, share).mfu


def _run(table: str, entry: dict, row: list) -> PublishedRun:
    layers, width, billions, mesh, micro_batch, micro_batches, speed = row
    shape = Mesh(*mesh_shape(mesh))
    stages = min(entry.get("interleaved", 1), layers // shape.pipeline) if shape.pipeline > 1 else 1
    recompute = "full" if entry.get("recompute", False) else "none"
    plan = Plan(micro_batch, micro_batches, entry["sharding"], recompute, max(1, stages))
    model = Gpt(layers, width, billions * 1e9, entry["tokens"])
    machine = catalogue.machine(entry["machine"])
    flops_per_s = speed * _flops_of(entry["unit"], model, machine)
    mfu = flops_per_s / max(machine.peak_flops_per_s.values())
    return PublishedRun(table, entry.get("like", table), machine, model, shape, plan, mfu)


def _flops_of(unit: str, model: Gpt, machine: catalogue.Machine) -> float:
    """How many of the model's floating-point operations per second and GPU one of this unit stands for."""
    return {
        "teraFLOP/s per GPU": 1e12,
        "teraFLOP/s per GPU, with recomputing": 1e12 / (4 / 3),
        "tokens/s per GPU": model.flops / model.tokens,
        "% of the peak (MFU)": max(machine.peak_flops_per_s.values()) / 100,
    }[unit]


TABLES = {name: [_run(name, entry, row) for row in entry["rows"]] for name, entry in PUBLISHED["meshes"].items()}


@functools.cache
def share_of(table: str) -> float:
    """The share of its peak that one device must reach so that the forecast of this table's first run is exact."""
    run = TABLES[table][0]
    low = 0.0
    high = 2.0
    for _ in range(50):
        middle = (low + high) / 2
        if run.forecast_mfu(middle) < run.mfu:
            low = middle
        else:
            high = middle
    return high


def beside_forecast() -> pd.DataFrame:
    """One row per published run, without the first run of a table that calibrates itself.

    Columns: table, ranks, mesh, the published and the forecast MFU, and the error as a fraction of the published MFU.
    """
    rows = []
    for table, (first, *others) in TABLES.items():
        for run in others if first.like == table else [first, *others]:
            found = run.forecast_mfu(share_of(run.like))
            row = {"table": table, "ranks": run.mesh.ranks, "mesh": str(run.mesh)}
            rows.append(row | {"published": run.mfu, "forecast": found, "error": found / run.mfu - 1})
    return pd.DataFrame(rows)
