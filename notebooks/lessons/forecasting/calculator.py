"""The calculator with controls in 08c_forecasting: what would more devices bring?"""

import ipywidgets as widgets

from workshop_lib.forecast.figures import draw_forecast
from workshop_lib.forecast.forecast import BACKENDS, Settings, forecast
from workshop_lib.forecast.report import answer, conditions, digits
from workshop_lib.machine import catalogue
from workshop_lib.machine.catalogue import Machine
from workshop_lib.notebook.figures import RecordFigure
from workshop_lib.notebook.widgets import Answers

from lessons.zero_and_fsdp.calculator import TYPED, choice, parsed

OVERLAP = {"as the backend": None, "no": False, "yes": True}


class Forecaster(Answers):
    """Controls for model, machine, backend, batch and possible changes, with the forecast for what is chosen."""

    def __init__(self, machines: dict[str, Machine]):
        self.machines = machines
        self.models = catalogue.models()
        first = next(iter(machines))
        known = next((name for name in self.models if name in machines[first].compute), "resnet-50")
        self.model = choice("model", self.models, known)
        self.machine = choice("machine", [(machine.title, name) for name, machine in machines.items()], first)
        self.backend = choice("backend", BACKENDS, "ddp")
        self.batch = widgets.IntText(value=32, description="batch per device", **TYPED)
        self.speed = widgets.Text(description="samples/s each", **TYPED)  # if empty, the machine's file gives the speed
        self.compression = choice("compression", [("none", 1), ("16 bits", 2), ("100 times", 100)], 1)
        self.network = choice("network speed", [("as it is", 1), ("4 times", 4), ("a quarter", 0.25)], 1)
        self.overlap = choice("overlap", OVERLAP, "as the backend")  # names: a choice with the value None looks empty
        columns = [
            [self.model, self.machine, self.speed],
            [self.backend, self.batch, self.overlap],
            [self.compression, self.network],
        ]
        super().__init__(columns, "workshop-forecast")

    def answer(self) -> tuple[str, RecordFigure]:
        model = self.models[self.model.value]
        machine = self.machines[self.machine.value]
        self.speed.placeholder = "none published"  # unless there is a forecast below
        if self.speed.value.strip():
            machine = machine.with_speed(model, parsed("samples/s each", self.speed.value))
        changes = {name: getattr(self, name).value for name in ("compression", "network")}
        settings = Settings(self.backend.value, self.batch.value, **changes, overlap=OVERLAP[self.overlap.value])
        points = forecast(model, machine, settings)
        self.speed.placeholder = digits(points[0].samples_per_s)
        return answer(points), draw_forecast(points, conditions(model, machine, settings))


def forecaster(measured: Machine | None = None) -> Forecaster:
    """Create controls for model, machine, backend, batch and possible changes, with a forecast for 1 to 4,096 devices.

    A cell shows the controls if they are its last value. `measured`, such as a `catalogue.laptop`, is offered next to
    the published machines.
    """
    machines = dict(catalogue.machines())
    return Forecaster(machines if measured is None else {measured.name: measured, **machines})
