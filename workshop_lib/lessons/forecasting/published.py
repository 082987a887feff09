"""Compares the forecast of 08c_forecasting with scaling that others have published, and fits `Lateness` to it.

published.toml holds the published numbers.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from workshop_lib.lessons.forecasting.forecast import LATENESS, PUNCTUAL, ForecastPoint, Lateness, Settings, forecast
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


def beside_forecast(lateness: Lateness = LATENESS) -> pd.DataFrame:
    """A table with one row per entry and number of devices: efficiency as published and as forecast, and the range.

    Efficiencies are fractions of 1. difference_points is forecast - published in percentage points, and inside says
    whether the published efficiency is in the range.
    """
    rows = []
    for entry in EVERYTHING:
        base, *points = _forecast(entry, [entry.baseline, *entry.efficiency], lateness)
        for point, published in zip(points, entry.efficiency.values(), strict=True):
            row = {"table": entry.table, "what": entry.what, "devices": point.devices}
            rows.append(row | _compared(base, point, published))
    return pd.DataFrame(rows)


def _forecast(entry: PublishedScaling, devices: Iterable[int], lateness: Lateness) -> list[ForecastPoint]:
    model = catalogue.model(entry.model)
    machine = catalogue.machine(entry.machine)
    if entry.samples_per_s:
        machine = machine.with_speed(model, entry.samples_per_s)
    return forecast(model, machine, entry.settings, devices, lateness)


def _compared(base: ForecastPoint, point: ForecastPoint, published: float) -> dict[str, float | bool]:
    expected = base.step_s / point.step_s
    low = base.step_s / point.most_s
    high = base.least_s / point.least_s
    return {
        "published": published,
        "forecast": expected,
        "low": low,
        "high": high,
        "difference_points": 100 * (expected - published),
        "inside": low <= published <= high + 1e-9,
    }


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
    points = pd.DataFrame([point for entry in entries for point in _forecast(entry, entry.efficiency, PUNCTUAL)])
    compute_s = points["compute_s"]
    slowest_s = compute_s * points["devices"].map(slowest_of)

    def error(typical: float) -> float:
        forecast = compute_s / np.maximum(points["step_s"], compute_s + typical * slowest_s)
        return (forecast - published).abs().groupby(table).mean().sum()

    lost_s = compute_s / published - compute_s - LATENESS.slower_messages * points["communication_s"]
    needed = sorted(lost_s / slowest_s)
    at_worst = needed[math.ceil(COVERED * len(needed)) - 1]
    typical = min((number / 1000 for number in range(201)), key=error)
    return Lateness(typical, math.ceil(1000 * at_worst) / 1000, LATENESS.slower_messages)
