"""Puts a forecast of 08c_forecasting, or of the command `workshop predict`, into words and tables."""

from collections.abc import Sequence

from rich.table import Table

from workshop_lib.forecast.forecast import (
    ForecastPoint,
    Settings,
    alone_samples_per_s,
    outgrows_learning,
    takes_over,
    what_if,
)
from workshop_lib.machine.catalogue import Machine, Model
from workshop_lib.notebook.results.tables import rich_table

UNITS_S = {"s": 1, "min": 60, "h": 3600, "days": 86_400}


def answer(points: Sequence[ForecastPoint]) -> str:
    """The forecast in one or two sentences: the last point's step, and where communication or the batch takes over."""
    last = points[-1]
    count = "1 device" if last.devices == 1 else f"{last.devices:,} devices"
    words = f"On {count} a step takes {duration(last.step_s)}, at an efficiency of {last.efficiency:.0%}"
    taken = takes_over(points)
    words += f"; communication takes over at {taken:,}." if taken else "; communication never takes over."
    grown = outgrows_learning(points)
    if grown:
        words += f" From {grown:,} on, the global batch is above the critical one."
    return words


def conditions(model: Model, machine: Machine, settings: Settings) -> str:
    """One line with the forecast's model, machine and settings, and the speed of one device."""
    how = settings.how
    speed = alone_samples_per_s(model, machine, settings)
    batch = f"batch {settings.batch_size:,} a device" if settings.batch_size else ""
    words = [model.what, machine.what, settings.backend, batch or f"global batch {settings.global_batch:,}"]
    words.append("communication during backward" if how.overlap else "communication after backward")
    if settings.compression != 1:
        words.append(f"gradients compressed {settings.compression:g} times")
    if settings.network != 1:
        words.append(f"network {settings.network:g} times as fast")
    words.append(f"one device: {digits(speed)} samples/s")
    return "; ".join(words)


STEP_HEADINGS = ("step", "of it\nwaiting", "samples/s", "efficiency\n(range)")


def table(points: Sequence[ForecastPoint]) -> Table:
    """A table with one row per number of devices, and columns on learning if the model has a target."""
    headings = ["devices", "global\nbatch", *STEP_HEADINGS]
    caption = "range: has nine of ten points that it was fitted to"
    if points[0].learning is not None:
        headings += ["useful", "time to\ntarget", "device-\nhours"]
        caption += "\nuseful: samples needed with a tiny batch / with this batch"
    filled = rich_table(*headings, caption=caption)
    for point in points:
        filled.add_row(f"{point.devices:,}", f"{point.global_batch:,}", *_step_cells(point), *_learning_cells(point))
    return filled


def what_if_table(model: Model, machine: Machine, settings: Settings, devices: int) -> Table:
    """A table of the step on this number of devices, with one thing changed per row."""
    filled = rich_table("", "messages", *STEP_HEADINGS)
    for name, point in what_if(model, machine, settings, devices).items():
        filled.add_row(name, str(point.messages), *_step_cells(point))
    return filled


def _step_cells(point: ForecastPoint) -> list[str]:
    waiting = f"{abs(point.waiting_s) / point.step_s:.0%}"
    return [duration(point.step_s), waiting, f"{point.samples_per_s:,.0f}", efficiency(point)]


def efficiency(point: ForecastPoint) -> str:
    """The efficiency with its range as text, such as 93% (61–99)."""
    if point.devices == 1:
        return "100%"
    low, high = (point.efficiency * point.step_s / bound for bound in (point.most_s, point.least_s))
    return f"{point.efficiency:.0%} ({100 * low:.0f}–{100 * high:.0f})"


def _learning_cells(point: ForecastPoint) -> list[str]:
    """The cells on learning; none if the model has no target."""
    if point.learning is None or point.time_to_target_s is None or point.device_hours is None:
        return []
    return [f"{point.learning:.0%}", duration(point.time_to_target_s), digits(point.device_hours)]


def duration(seconds: float) -> str:
    """A duration as text: three digits, in the largest unit that makes it at least 1, or in ms or µs below a second."""
    if seconds == 0:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
    unit = [unit for unit in UNITS_S if seconds >= UNITS_S[unit]][-1]
    return f"{digits(seconds / UNITS_S[unit])} {unit}"


def digits(value: float) -> str:
    """A number as text: three significant digits, or all digits before the decimal point if there are more."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"
