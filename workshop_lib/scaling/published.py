"""Scaling that others have published (presets/published.toml), beside what the forecast says."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from workshop_lib.scaling import catalogue
from workshop_lib.scaling.forecast import Point, Settings, forecast


@dataclass(frozen=True)
class Published:
    """Efficiencies by number of devices, against `baseline` devices; the batch is each device's.

    account: why forecast and measurement differ, where they do.
    """

    what: str
    model: str
    machine: str
    settings: Settings
    efficiency: dict[int, float]
    source: str
    baseline: int = 1
    samples_per_s: float | None = None  # of one device, where it is the published one
    account: str = ""


def _published(what: str, entry: dict) -> Published:
    settings = Settings(entry.pop("backend"), entry.pop("batch_size"))
    efficiency = _efficiency(entry.pop("efficiency", {}), entry.pop("times_s", {}), entry.pop("speeds", {}))
    return Published(what, settings=settings, efficiency=efficiency, **entry)


def _efficiency(efficiency: dict, times_s: dict, speeds: dict) -> dict[int, float]:
    """As published, or from seconds of the same work or samples/s, against one device."""
    efficiency = efficiency | {n: times_s["1"] / (int(n) * s) for n, s in times_s.items() if n != "1"}
    efficiency |= {n: speed / (int(n) * speeds["1"]) for n, speed in speeds.items() if n != "1"}
    return {int(n): share for n, share in efficiency.items()}


EVERYTHING = [_published(what, entry) for what, entry in catalogue.read(catalogue.PRESETS / "published.toml").items()]


def beside_forecast(entries: Iterable[Published] = EVERYTHING) -> pd.DataFrame:
    """One row per entry and number of devices: published, forecast, and the forecast if nothing or
    everything overlapped.

    Efficiencies are shares; difference_points is forecast - published in percentage points.
    """
    rows = []
    for entry in entries:
        model, machine = catalogue.model(entry.model), catalogue.machine(entry.machine)
        if entry.samples_per_s:
            machine = machine.with_speed(model, entry.samples_per_s)
        base, *points = forecast(model, machine, entry.settings, [entry.baseline, *entry.efficiency])
        for point, published in zip(points, entry.efficiency.values(), strict=True):
            rows.append({"what": entry.what, "devices": point.devices, **_compared(base, point, published)})
    return pd.DataFrame(rows)


def _compared(base: Point, point: Point, published: float) -> dict[str, float]:
    expected = base.step_s / point.step_s
    return {
        "published": published,
        "forecast": expected,
        "no_overlap": base.most_s / point.most_s,
        "full_overlap": base.least_s / point.least_s,
        "difference_points": 100 * (expected - published),
    }
