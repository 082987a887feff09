"""A forecast in words and tables."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from workshop_lib.scaling.catalogue import Machine, Model
from workshop_lib.scaling.forecast import Point, Settings, outgrows_learning, takes_over, what_if

UNITS_S = {"s": 1, "min": 60, "h": 3600, "days": 86_400}


def answer(points: Sequence[Point]) -> str:
    """What the last point costs, and where communication takes over and learning stops gaining: one or two
    sentences."""
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
    """What the forecast is for, and where the speed of one device is from."""
    how, found = settings.how, machine.compute_of(model)
    alone = settings.batch_size or settings.global_batch
    speed = alone / (found.fixed_s + alone * found.s_per_sample)
    batch = f"batch {settings.batch_size:,} a device" if settings.batch_size else ""
    words = [model.what, machine.what, settings.backend, batch or f"global batch {settings.global_batch:,}"]
    words.append("communication during backward" if how.overlap else "communication after backward")
    words += [f"gradients compressed {settings.compression:g} times"] * (settings.compression != 1)
    words += [f"network {settings.network:g} times as fast"] * (settings.network != 1)
    words.append(f"one device: {speed:,.0f} samples/s")
    return "; ".join(words)


def table(points: Sequence[Point]) -> Table:
    """One row a number of devices; the columns on learning only where the model has a target."""
    learns = points[0].learning is not None
    shown = _empty("devices", "global\nbatch", "step", "of it\nwaiting", "samples/s", "efficiency\n(range)")
    if learns:
        for heading in ("useful\nsamples", "time to\ntarget", "device-\nhours"):
            shown.add_column(heading, justify="right")
    caption = "range: nothing overlaps, to all that can"
    shown.caption = f"{caption}\nuseful: what a small batch would need too" if learns else caption
    shown.caption_justify = "left"
    for point in points:
        shown.add_row(*_cells(point), *(_learning(point) if learns else ()))
    return shown


def what_if_table(model: Model, machine: Machine, settings: Settings, devices: int) -> Table:
    """The step on so many devices with one thing changed at a time."""
    shown = _empty("", "messages", "step", "of it\nwaiting", "samples/s", "efficiency\n(range)")
    shown.columns[0].justify = "left"
    for name, point in what_if(model, machine, settings, devices).items():
        shown.add_row(name, str(point.messages), *_cells(point)[2:])
    return shown


def _empty(*headings: str) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        shown.add_column(heading, justify="right", no_wrap=True)
    return shown


def _cells(point: Point) -> list[str]:
    low, high = (point.efficiency * point.step_s / bound for bound in (point.most_s, point.least_s))
    return [
        f"{point.devices:,}", f"{point.global_batch:,}", duration(point.step_s),
        f"{abs(point.waiting_s) / point.step_s:.0%}", f"{point.samples_per_s:,.0f}",
        f"{point.efficiency:.0%} ({100 * low:.0f} to {100 * high:.0f})",
    ]  # fmt: skip


def _learning(point: Point) -> list[str]:
    return [f"{point.learning:.0%}", duration(point.time_to_target_s), _digits(point.device_hours)]


def duration(seconds: float) -> str:
    """With three digits, in the largest unit of which there is at least one, or in ms or µs."""
    if seconds == 0:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
    unit = max((unit for unit in UNITS_S if seconds >= UNITS_S[unit]), key=UNITS_S.get)
    return f"{_digits(seconds / UNITS_S[unit])} {unit}"


def _digits(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"
