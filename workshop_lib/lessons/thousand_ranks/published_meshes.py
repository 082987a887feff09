"""Compare forecasts with published runs: 12_thousand_ranks asks how far off its forecasts are.

The runs, with their meshes and speeds, are in lessons/forecasting/presets/meshes.toml.
"""

import functools
from dataclasses import dataclass

import pandas as pd

from workshop_lib.lessons.forecasting import catalogue
from workshop_lib.lessons.thousand_ranks import meshes
from workshop_lib.lessons.thousand_ranks.meshes import Gpt, Mesh, Plan
from workshop_lib.lessons.thousand_ranks.step_report import mesh_shape

GIGA = 10**9


@dataclass(frozen=True)
class PublishedRun:
    """One published run: the model, its mesh and plan, and the speed in the unit of its table."""

    model: Gpt
    mesh: Mesh
    plan: Plan
    speed: float


@dataclass(frozen=True)
class Table:
    """The runs of one published table.

    like: the name of the table whose first run tells what one device can do, either this table or a different one.
    """

    name: str
    machine: catalogue.Machine
    runs: tuple[PublishedRun, ...]
    unit: str
    like: str


def _run(entry: dict, row: list) -> PublishedRun:
    layers, width, billions, mesh, micro_batch, micro_batches, speed = row
    shape = Mesh(*mesh_shape(mesh))
    stages = min(entry.get("interleaved", 1), layers // shape.pipeline) if shape.pipeline > 1 else 1
    recompute = "full" if entry.get("recompute", False) else "none"
    plan = Plan(micro_batch, micro_batches, entry["sharding"], recompute, max(1, stages))
    return PublishedRun(Gpt(layers, width, billions * GIGA, entry["tokens"]), shape, plan, speed)


def _table(name: str, entry: dict) -> Table:
    runs = tuple(_run(entry, row) for row in entry["rows"])
    machine = catalogue.machine(entry["machine"])
    return Table(name, machine, runs, entry["unit"], entry.get("like", name))


TABLES = {name: _table(name, entry) for name, entry in catalogue.read(catalogue.PRESETS / "meshes.toml").items()}


def mfu(run: PublishedRun, table: Table) -> float:
    """The published speed as model-FLOPs utilization: the model's own operations as a share of the device's peak."""
    peak = max(table.machine.peak_flops_per_s.values())
    if table.unit.startswith("tokens/s"):
        return run.speed * run.model.flops / run.model.tokens / peak
    if table.unit.startswith("%"):
        return run.speed / 100
    return run.speed * 1e12 / (4 / 3 if "recomputing" in table.unit else 1) / peak


@functools.cache
def share_of(name: str) -> float:
    """The share of its peak that one device must reach so that the forecast of this table's first run is exact."""
    table = TABLES[name]
    run = table.runs[0]
    low = 0.0
    high = 2.0
    for _ in range(50):
        middle = (low + high) / 2
        found = meshes.of_formulas(run.model, table.machine, run.mesh, run.plan, middle).mfu
        low, high = (middle, high) if found < mfu(run, table) else (low, middle)
    return high


def beside_forecast() -> pd.DataFrame:
    """One row per published run, without the first run of a table that calibrates itself.

    Columns: table, ranks, mesh, the published and the forecast MFU, and the error as a fraction of the published MFU.
    """
    rows = []
    for table in TABLES.values():
        share = share_of(table.like)
        for run in table.runs[table.like == table.name :]:
            published = mfu(run, table)
            found = meshes.of_formulas(run.model, table.machine, run.mesh, run.plan, share).mfu
            row = {"table": table.name, "ranks": run.mesh.ranks, "mesh": str(run.mesh)}
            rows.append(row | {"published": published, "forecast": found, "error": found / published - 1})
    return pd.DataFrame(rows)
