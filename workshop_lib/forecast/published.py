"""Compares forecasts with what others have published, for 08c_forecasting and 12_thousand_ranks, and fits `Lateness`.

published.toml holds the published numbers: efficiencies of data-parallel training, and speeds of transformers on meshes
of ranks as model-FLOPs utilization.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from workshop_lib.forecast.forecast import (
    LATENESS,
    PUNCTUAL,
    ForecastPoint,
    Lateness,
    Mesh,
    Settings,
    forecast,
    mesh_shape,
)
from workshop_lib.forecast.meshes import Gpt, MeshForecast, Plan, of_formulas
from workshop_lib.machine import catalogue
from workshop_lib.machine.cost_model import slowest_of

# Tables that the constants are fitted to, and tables that are held out from this fit. The form of the forecast was
# chosen on HELD_OUT. Late input, cores lost to the collective, a fixed cost per step, and lateness were tried as terms.
# Only lateness was kept, and of lateness and messages the longer one counts, because this came out best on HELD_OUT.
# So the errors there are probably too small, and no table here is an independent test. Tables in neither list measured
# more than steps: start-up, tests, and a baseline that was slowed down.
FITTED = ("DLPerf ResNet-50", "DLPerf BERT", "Horovod")
HELD_OUT = ("Goyal et al.", "NVIDIA PyTorch", "NVIDIA MXNet", "TensorFlow")
PUBLISHED = catalogue.read(Path(__file__).parent / "published.toml")
COVERED = 0.9  # share of the points that the range has to cover


@dataclass(frozen=True)
class PublishedScaling:
    """One published measurement: efficiencies by number of devices, relative to `baseline` devices.

    The batch in `settings` is per device. account: why forecast and measurement differ, where they do.
    """

    what: str
    model: str
    machine: str
    settings: Settings
    efficiency: dict[int, float]
    source: str
    baseline: int = 1
    samples_per_s: float | None = None  # published speed of one device; None if not published
    account: str = ""

    @property
    def table(self) -> str:
        """The name of the published table that this is from."""
        return self.what.partition(",")[0]


def _published(what: str, entry: dict) -> PublishedScaling:
    settings = Settings(entry.pop("backend"), entry.pop("batch_size"))
    speeds = entry.pop("speeds", {})
    efficiency = _efficiency(entry.pop("efficiency", {}), entry.pop("times_s", {}), speeds)
    entry = {"samples_per_s": speeds.get("1")} | entry
    return PublishedScaling(what, settings=settings, efficiency=efficiency, **entry)


def _efficiency(efficiency: dict, times_s: dict, speeds: dict) -> dict[int, float]:
    """Efficiencies by number of devices: as published, or from seconds of the same work or samples/s, against one."""
    efficiency = efficiency | {n: times_s["1"] / (int(n) * s) for n, s in times_s.items() if n != "1"}
    efficiency |= {n: speed / (int(n) * speeds["1"]) for n, speed in speeds.items() if n != "1"}
    return {int(n): share for n, share in efficiency.items()}


EVERYTHING = [_published(what, entry) for what, entry in PUBLISHED["scaling"].items()]


@dataclass(frozen=True)
class PublishedMesh:
    """One published training run on a mesh: what trained where, and its speed as model-FLOPs utilization (MFU).

    like: the name of the table whose first run tells what one device can do, either this table or a different one.
    """

    table: str
    like: str
    machine: catalogue.Machine
    model: Gpt
    mesh: Mesh
    plan: Plan
    mfu: float

    def forecast(self, share: float, step: Callable | None = None) -> MeshForecast:
        """The forecast, if one device's arithmetic reaches this share of its peak. step: see `MeshForecast.by`."""
        made = of_formulas(self.model, self.machine, self.mesh, self.plan, share)
        return made.by(step) if step else made


def _published_mesh(table: str, entry: dict, row: list) -> PublishedMesh:
    layers, width, billions, shape, micro_batch, micro_batches, speed = row
    mesh = Mesh(*mesh_shape(shape))
    stages = min(entry.get("interleaved", 1), layers // mesh.pipeline) if mesh.pipeline > 1 else 1
    recompute = "full" if entry.get("recompute", False) else "none"
    plan = Plan(micro_batch, micro_batches, entry["sharding"], recompute, max(1, stages))
    model = Gpt(layers, width, billions * 1e9, entry["tokens"], entry.get("vocabulary", 0), entry.get("tied", True))
    machine = catalogue.machine(entry["machine"])
    peak = max(machine.peak_flops_per_s.values())
    unit_flops_per_s = {
        "teraFLOP/s per GPU": 1e12,
        "teraFLOP/s per GPU, with recomputing": 1e12 / (4 / 3),
        "tokens/s per GPU": model.flops / model.tokens,
        "% of the peak (MFU)": peak / 100,
    }[entry["unit"]]
    return PublishedMesh(table, entry.get("like", table), machine, model, mesh, plan, speed * unit_flops_per_s / peak)


MESHES = {
    table: [_published_mesh(table, entry, row) for row in entry["rows"]] for table, entry in PUBLISHED["meshes"].items()
}


@functools.cache
def share_of(table: str, step: Callable | None = None) -> float:
    """The share of its peak that one device must reach so that the forecast of this table's first run is exact."""
    run = MESHES[table][0]
    low, high = 0.0, 2.0
    for _ in range(50):
        middle = (low + high) / 2
        if run.forecast(middle, step).mfu < run.mfu:
            low = middle
        else:
            high = middle
    return high


def beside_forecast(lateness: Lateness = LATENESS) -> pd.DataFrame:
    """A table with one row per entry and number of devices: efficiency as published and as forecast, and the range.

    Efficiencies are fractions of 1. difference_points is forecast - published in percentage points, error is the same
    as a share of what was published, and inside says whether that is in the range.
    """
    rows = []
    for entry in EVERYTHING:
        base, *points = forecast_of(entry, [entry.baseline, *entry.efficiency], lateness)
        for point, published in zip(points, entry.efficiency.values(), strict=True):
            row = {"table": entry.table, "what": entry.what, "devices": point.devices}
            shares = base.step_s / point.step_s, base.step_s / point.most_s, base.least_s / point.least_s
            rows.append(row | _compared(published, *shares))
    return pd.DataFrame(rows)


def meshes_beside_forecast(step: Callable | None = None) -> pd.DataFrame:
    """A table with one row per published mesh, and the columns of `beside_forecast` for its MFU.

    A table's first run, if it calibrates the others, is left out. step: see `MeshForecast.by`.
    """
    rows = []
    for table, (first, *others) in MESHES.items():
        for run in others if first.like == table else [first, *others]:
            made = run.forecast(share_of(run.like, step), step)
            row = {"table": table, "mesh": str(run.mesh), "devices": run.mesh.ranks}
            low, high = (made.mfu * made.step_s / bound for bound in (made.most_s, made.least_s))
            rows.append(row | _compared(run.mfu, made.mfu, low, high))
    return pd.DataFrame(rows)


def _compared(published: float, expected: float, low: float, high: float) -> dict[str, float | bool]:
    return {
        "published": published,
        "forecast": expected,
        "low": low,
        "high": high,
        "difference_points": 100 * (expected - published),
        "error": expected / published - 1,
        "inside": low <= published <= high + 1e-9,
    }


def forecast_of(entry: PublishedScaling, devices: Iterable[int], lateness: Lateness) -> list[ForecastPoint]:
    """The forecast for a published measurement, on these numbers of devices."""
    model = catalogue.model(entry.model)
    machine = catalogue.machine(entry.machine)
    if entry.samples_per_s:
        machine = machine.with_speed(model, entry.samples_per_s)
    return forecast(model, machine, entry.settings, devices, lateness)


def mean_errors(columns: Mapping[str, Lateness]) -> pd.DataFrame:
    """A table of each table's mean error in percentage points, with one column per named lateness.

    It has the tables FITTED and HELD_OUT, each with the number of its points.
    """
    found: dict[str, pd.Series] = {}
    for name, lateness in columns.items():
        rows = beside_forecast(lateness)
        errors = rows["difference_points"].abs().groupby(rows["table"])
        found |= {"points": errors.size(), name: errors.mean().round(1)}
    table = pd.DataFrame(found)
    return pd.concat({"fitted": table.loc[list(FITTED)], "held out": table.loc[list(HELD_OUT)]})


def fit_lateness(tables: Iterable[str] = FITTED) -> Lateness:
    """Fit the `typical` and `at_worst` lateness to these tables, both to a thousandth.

    `typical` has the least mean error, with each table counting the same. `at_worst` is the least with which the
    forecast's range reaches down to a share COVERED of the points. The baseline of these tables is one device.
    """
    entries = [entry for entry in EVERYTHING if entry.table in tables]
    table = np.array([entry.table for entry in entries for _ in entry.efficiency])
    published = np.array([share for entry in entries for share in entry.efficiency.values()])
    points = pd.DataFrame([point for entry in entries for point in forecast_of(entry, entry.efficiency, PUNCTUAL)])
    compute_s = points["compute_s"]
    slowest_s = compute_s * points["devices"].map(slowest_of)

    def error(typical: float) -> float:
        forecast = compute_s / np.maximum(points["step_s"], compute_s + typical * slowest_s)
        return (forecast - published).abs().groupby(table).mean().sum()

    lost_s = compute_s / published - compute_s - LATENESS.slower_messages * points["data_s"]
    needed = sorted(lost_s / slowest_s)
    at_worst = needed[math.ceil(COVERED * len(needed)) - 1]
    typical = min((number / 1000 for number in range(201)), key=error)
    return Lateness(typical, math.ceil(1000 * at_worst) / 1000, LATENESS.slower_messages)
