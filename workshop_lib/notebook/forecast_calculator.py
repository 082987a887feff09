"""What would more devices bring? A forecast with controls for model, machine, backend and batch."""

import textwrap
from collections.abc import Sequence

import ipywidgets as widgets

from workshop_lib.notebook import figures
from workshop_lib.notebook.answers import Answers
from workshop_lib.notebook.figures import FONT_SIZE, GREY, RecordFigure, Style
from workshop_lib.scaling import catalogue
from workshop_lib.scaling.catalogue import Machine
from workshop_lib.scaling.forecast import (
    BACKENDS,
    UNITS_S,
    Point,
    Settings,
    answer,
    conditions,
    forecast,
    outgrows_learning,
    takes_over,
)

SPEED, LEARNING, BOTH = (Style.number(index) for index in range(3))


def draw(points: Sequence[Point], told: str = "") -> RecordFigure:
    """Efficiency on the left, and on the right the time to the model's target, or the throughput if it has
    none.

    `told`, the conditions, goes under the title, which is the answer. Raises ValueError without points.
    """
    if not points:
        raise ValueError("no points to draw: give at least one number of devices")
    title = textwrap.fill(answer(points), 92)
    figure = RecordFigure(figsize=figures.SIZE_INCHES, facecolor="white")
    figure.text(0.06, 0.975, title, fontsize=FONT_SIZE + 2, weight="bold", va="top")
    below = 0.925 - 0.045 * title.count("\n")
    figure.text(0.06, below, textwrap.fill(told, 132), fontsize=FONT_SIZE - 2, color=GREY, va="top")
    left, right = figure.subplots(1, 2)
    handles = _draw_efficiency(left, points)
    handles += _draw_time(right, points) if points[0].time_to_target_s else _draw_speed(right, points)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("devices")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        handles += _mark(axes, points, first=axes is left)
    figures.draw_legend(figure, *figures.in_columns(handles))
    figure.subplots_adjust(top=below - 0.05 - 0.033 * len(textwrap.wrap(told, 132)))
    return figure


def _draw_efficiency(axes, points: Sequence[Point]) -> list:
    devices = [point.devices for point in points]
    low, high = (
        [point.efficiency * point.step_s / getattr(point, bound) for point in points] for bound in ("most_s", "least_s")
    )
    shared = {"color": SPEED.colour, "alpha": 0.22, "linewidth": 0, "label": "nothing to everything overlapped"}
    band = axes.fill_between(devices, low, high, **shared)
    lines = {"speed: forecast": ([point.efficiency for point in points], SPEED)}
    if points[0].learning:
        useful = [point.learning for point in points]
        lines["learning: samples that a small batch needs too"] = (useful, LEARNING)
        both = [point.learning * point.efficiency for point in points]
        lines["both: what a device contributes"] = (both, BOTH)
    handles = [_line(axes, devices, values, style, name) for name, (values, style) in lines.items()]
    axes.set_ylim(0, 1.08)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_ylabel("efficiency")
    return [*handles, band]


def _draw_time(axes, points: Sequence[Point]) -> list:
    first = points[0].time_to_target_s
    unit = max((unit for unit in UNITS_S if first >= 10 * UNITS_S[unit]), key=UNITS_S.get, default="s")
    devices = [point.devices for point in points]
    to_target = [point.time_to_target_s / UNITS_S[unit] for point in points]
    ideal = [to_target[0] * devices[0] / n for n in devices]
    _line(axes, devices, to_target, BOTH)
    axes.set_yscale("log")
    axes.set_ylabel(f"time to the target ({unit})")
    return [_ideal(axes, devices, ideal)]


def _draw_speed(axes, points: Sequence[Point]) -> list:
    devices = [point.devices for point in points]
    speeds = [point.samples_per_s for point in points]
    _line(axes, devices, speeds, SPEED)
    axes.set_yscale("log")
    axes.set_ylabel("samples/s")
    return [_ideal(axes, devices, [speeds[0] / devices[0] * n for n in devices])]


def _line(axes, x, y, style: Style, name: str = ""):
    look = {"color": style.colour, "marker": style.marker, "linestyle": style.line}
    axes.plot(x, y, **look, linewidth=2, markersize=7)
    return figures.handle_of(name, style)


def _ideal(axes, x, y):
    return axes.plot(x, y, color=GREY, linestyle=":", linewidth=2, label="perfect scaling of the first point")[0]


def _mark(axes, points: Sequence[Point], first: bool) -> list:
    """Vertical lines where communication takes over and the batch outgrows learning; handles the first
    time."""
    places = {
        "communication takes longer than computing": (takes_over(points), (0, (1, 1))),
        "the global batch is above the critical one": (outgrows_learning(points), (0, (7, 3))),
    }
    drawn = [
        axes.axvline(devices, color="black", linestyle=line, linewidth=1.8, label=name)
        for name, (devices, line) in places.items()
        if devices
    ]
    return drawn if first else []


class Forecaster(Answers):
    """The forecast for the chosen model, machine, backend and batch, and for what could be changed."""

    def __init__(self, machines: dict[str, Machine]):
        self.machines, self.models = machines, catalogue.models()
        wide = {"style": {"description_width": "130px"}, "layout": widgets.Layout(width="345px")}
        typed = {**wide, "continuous_update": False}
        first = next(iter(machines))
        known = next((name for name in self.models if name in machines[first].compute), "resnet-50")
        self.model = widgets.Dropdown(options=list(self.models), value=known, description="model", **wide)
        self.machine = widgets.Dropdown(options=list(machines), value=first, description="machine", **wide)
        self.backend = widgets.Dropdown(options=list(BACKENDS), value="ddp", description="backend", **wide)
        self.batch = widgets.IntText(value=32, description="batch a device", **typed)
        self.speed = widgets.FloatText(value=0, description="samples/s of one", **typed)
        self.compression = widgets.Dropdown(
            options=[("none", 1), ("16 bits", 2), ("100 times", 100)], description="compression", **wide
        )
        self.network = widgets.Dropdown(
            options=[("as it is", 1), ("4 times", 4), ("a quarter", 0.25)], description="network speed", **wide
        )
        self.overlap = widgets.Dropdown(
            options=[("as the backend", None), ("no", False), ("yes", True)], description="overlap", **wide
        )
        columns = [
            [self.model, self.machine, self.speed],
            [self.backend, self.batch, self.overlap],
            [self.compression, self.network],
        ]
        super().__init__(columns, "workshop-forecast")

    def answer(self) -> tuple[str, RecordFigure]:
        points, told = self._forecast()
        return answer(points), draw(points, told)

    def _forecast(self) -> tuple[list[Point], str]:
        model, machine = self.models[self.model.value], self.machines[self.machine.value]
        if self.speed.value:
            machine = machine.with_speed(model, self.speed.value)
        settings = Settings(
            self.backend.value, self.batch.value, compression=self.compression.value,
            network=self.network.value, overlap=self.overlap.value,
        )  # fmt: skip
        return forecast(model, machine, settings), conditions(model, machine, settings)


def forecaster(measured: Machine | None = None) -> Forecaster:
    """Controls for model, machine, backend, batch and what could be changed, with the forecast for 1 to 4,096
    devices.

    It is the value of a cell. `measured`, such as a `catalogue.laptop`, is offered beside the machines looked
    up. A speed of 0 means the one that the machine's file gives.
    """
    machines = dict(catalogue.machines())
    return Forecaster(machines if measured is None else {measured.name: measured, **machines})
