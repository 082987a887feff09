"""Forecasts a training run on more devices, for 08c_forecasting: step time, efficiency, and the time to an accuracy.

A forecast is a formula with numbers that were looked up, or measured on one device. They do not say how much later
than usual the slowest of the devices is. This lateness, and how far off a forecast may be, are fitted to published
scaling (see published.py, and Lateness below). The form of the formula was chosen on tables that are held out from this
fit, so they are no independent test of it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from workshop_lib.errors import InputError
from workshop_lib.machine.catalogue import Machine, Model
from workshop_lib.machine.cost_model import overlapped_step_s, slowest_of
from workshop_lib.quantities import positive, whole

DEVICES = tuple(2**k for k in range(13))  # 1 to 4,096


@dataclass(frozen=True)
class BackendModel:
    """How a backend averages gradients: in messages of at most `message_bytes`, and with overlap or without.

    message_bytes: None for one message with all gradients, 0 for one message per tensor. overlap: whether messages
    travel during the backward pass.
    """

    message_bytes: float | None
    overlap: bool


BACKENDS = {
    # One Allreduce of all gradients after the backward pass (training/backends).
    "mpi": BackendModel(None, overlap=False),
    # Buckets of 25 MiB (Li et al. 2020, arXiv:2006.15704, section 3.2.3).
    "ddp": BackendModel(25 * 2**20, overlap=True),
    # Fusion buffers of 64 MiB (Sergeev and Del Balso 2018, arXiv:1802.05799, section 6).
    "horovod": BackendModel(64 * 2**20, overlap=True),
    # One message per gradient, as soon as the gradient is ready (Goyal et al. 2017, arXiv:1706.02677, section 4.1).
    "unfused": BackendModel(0, overlap=True),
}
# Backends that can train here but have no forecast, each with the reason.
WITHOUT_FORECAST = {
    "fsdp": "it also gathers the parameters, which this cost model leaves out",
    "deepspeed": "what it sends depends on the stage of ZeRO; stage 0 is close to ddp",
    "horovod-tf": "the cost model knows no framework; horovod has the same messages",
    "horovod-keras": "the cost model knows no framework; horovod has the same messages",
}


@dataclass(frozen=True)
class Lateness:
    """How late the slowest of n devices is: these shares of its computing time, times `slowest_of(n)` of cost_model.py.

    typical: the share in the forecast. at_worst: the share in the worst case, in which nothing overlaps and messages
    take `slower_messages` times as long as the data sheets say, because there is no GPUDirect, because half of the
    links are behind another socket, or because the network is shared with other jobs.
    """

    typical: float
    at_worst: float
    slower_messages: float


# `typical` and `at_worst` are what published.fit_lateness finds from its default tables.
LATENESS = Lateness(typical=0.036, at_worst=0.103, slower_messages=3)
PUNCTUAL = Lateness(typical=0.0, at_worst=0.0, slower_messages=1)  # no device is ever late


@dataclass(frozen=True)
class Settings:
    """The settings of a training run to forecast.

    batch_size: samples per device (weak scaling of a step). global_batch: samples shared out among the devices (strong
    scaling). Exactly one of the two is None. compression: what the bytes of the gradients are divided by, 2 for fp16.
    network: factor on the machine's bandwidth between nodes; latencies do not change.
    Raises InputError for settings that are wrong or contradict each other.
    """

    backend: str = "ddp"
    batch_size: int | None = 32
    global_batch: int | None = None
    compression: float = 1.0
    network: float = 1.0
    message_bytes: float | None = None  # bytes per fused message; None: the backend's
    overlap: bool | None = None  # whether messages overlap with the backward pass; None: as in the backend

    def __post_init__(self):
        if why := WITHOUT_FORECAST.get(self.backend):
            raise InputError(
                f"backend {self.backend!r} has no forecast, because {why}: choose one of {', '.join(BACKENDS)}"
            )
        if self.backend not in BACKENDS:
            raise InputError(f"backend {self.backend!r} is not known: choose one of {', '.join(BACKENDS)}")
        if (self.batch_size is None) == (self.global_batch is None):
            raise InputError("give either batch_size, a device's, or global_batch, that of all devices")
        for name in ("batch_size", "global_batch"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        positive(compression=self.compression, network=self.network)
        if self.message_bytes is not None and not self.message_bytes >= 0:
            raise InputError(f"message_bytes is {self.message_bytes!r}: give bytes, or 0 for one message per tensor")

    @property
    def how(self) -> BackendModel:
        """The backend, with the changes that these settings make to it."""
        known = BACKENDS[self.backend]
        size = known.message_bytes if self.message_bytes is None else self.message_bytes
        return BackendModel(size, known.overlap if self.overlap is None else self.overlap)

    def batch_per_device(self, devices: int) -> float:
        """Samples per device and step, on `devices` devices.

        Raises InputError unless `devices` is a whole number of at least 1, and no more than the global batch, if given.
        """
        devices = whole("devices", devices)
        if self.batch_size is not None:
            return self.batch_size
        if self.global_batch is None or devices > self.global_batch:
            raise InputError(
                f"a global batch of {self.global_batch} cannot be shared out among {devices} devices: ask for fewer"
            )
        return self.global_batch / devices


@dataclass(frozen=True)
class ForecastPoint:
    """The forecast for one number of devices. Times are in seconds, per step except for time_to_target_s.

    least_s and most_s are the range of step_s: with full overlap and no device late, and in the worst case of
    `Lateness`. learning is the share of the samples that a small batch would need too. learning and time_to_target_s
    are None if the model has no target.
    """

    devices: int
    global_batch: int
    messages: int
    compute_s: float
    communication_s: float
    least_s: float
    step_s: float
    most_s: float
    samples_per_s: float
    efficiency: float
    learning: float | None
    time_to_target_s: float | None

    @property
    def waiting_s(self) -> float:
        """Seconds of a step spent waiting for communication that computing does not hide, or for the slowest device."""
        return self.step_s - self.compute_s

    @property
    def device_hours(self) -> float | None:
        """Hours to the target times devices, busy or waiting, as a machine's owner counts; None without a target."""
        to = self.time_to_target_s
        return None if to is None else to / 3600 * self.devices


def forecast(
    model: Model,
    machine: Machine,
    settings: Settings | None = None,
    devices: Iterable[int] = DEVICES,
    lateness: Lateness = LATENESS,
) -> list[ForecastPoint]:
    """Forecast each number of devices; a partly filled last node counts as a full one.

    The efficiency is relative to one device with the same batch per device, or the same global batch. Raises InputError
    if a number of devices is not a whole number of at least 1, or exceeds the global batch, and for the same reasons as
    `Machine.compute_of`.
    """
    settings = settings or Settings()
    return [_point(model, machine, settings, n, lateness) for n in devices]


def _point(model: Model, machine: Machine, settings: Settings, devices: int, lateness: Lateness) -> ForecastPoint:
    batch = settings.batch_per_device(devices)
    compute = machine.compute_of(model)
    compute_s = compute.step_s(batch)
    messages = _messages(model, settings)
    message_s = machine.allreduce_s(devices, model.gradient_bytes / settings.compression / messages, settings.network)
    communication_s = messages * message_s
    late_s = compute_s * slowest_of(devices)
    step_s = compute_s + communication_s
    if settings.how.overlap:
        backward_s = compute.backward_share * compute_s
        step_s = overlapped_step_s(compute_s - backward_s, backward_s, message_s, messages)
    # The longer of the two, not their sum. This form was chosen on the held-out tables: it is closest to them (see
    # published.py).
    step_s = max(step_s, compute_s + lateness.typical * late_s)
    global_batch = round(batch * devices)
    samples_per_s = batch * devices / step_s
    learning = to_target_s = None
    if model.target:
        samples = model.target.samples(global_batch)
        learning = model.target.least_samples / samples
        to_target_s = step_s * samples / global_batch
    return ForecastPoint(
        devices,
        global_batch,
        messages,
        compute_s,
        communication_s,
        least_s=max(compute_s, communication_s),
        step_s=step_s,
        most_s=compute_s + lateness.at_worst * late_s + lateness.slower_messages * communication_s,
        samples_per_s=samples_per_s,
        efficiency=samples_per_s / devices / alone_samples_per_s(model, machine, settings),
        learning=learning,
        time_to_target_s=to_target_s,
    )


def alone_samples_per_s(model: Model, machine: Machine, settings: Settings) -> float:
    """Samples per second of one device with the same batch per device, or the same global batch."""
    batch = settings.batch_per_device(1)
    return batch / machine.compute_of(model).step_s(batch)


def _messages(model: Model, settings: Settings) -> int:
    """The number of messages per step: as many as fill the buffers, but at most one per tensor.

    The forecast takes all messages to be equally large, though in reality they differ in size.
    """
    size = settings.how.message_bytes
    if not size:
        return 1 if size is None else model.tensors
    buffers = math.ceil(model.gradient_bytes / settings.compression / size)
    return min(model.tensors, buffers)


def takes_over(points: Iterable[ForecastPoint]) -> int | None:
    """The first number of devices at which communication takes longer than computing; None if there is none.

    From there on, even full overlap cannot keep a step from becoming longer.
    """
    return next((point.devices for point in points if point.communication_s > point.compute_s), None)


def outgrows_learning(points: Iterable[ForecastPoint]) -> int | None:
    """The first number of devices whose global batch is above the critical one; None if there is none.

    From there on, less than half of the samples would be enough with a small batch.
    """
    return next((point.devices for point in points if point.learning and point.learning < 0.5), None)


def what_if(model: Model, machine: Machine, settings: Settings, devices: int) -> dict[str, ForecastPoint]:
    """Forecast the same training run on this number of devices, each time with one thing changed; Points by change."""
    how = settings.how
    batch = "global_batch" if settings.batch_size is None else "batch_size"
    changes: dict[str, dict[str, Any]] = {
        "as it is": {},
        "no overlap" if how.overlap else "overlap": {"overlap": not how.overlap},
        "a message a tensor": {"message_bytes": 0},
        "one message": {"message_bytes": 2**62},
        "gradients in 16 bits": {"compression": 2 * settings.compression},
        "twice the batch": {batch: 2 * getattr(settings, batch)},
        "a network 4 times as fast": {"network": 4 * settings.network},
    }
    return {
        name: forecast(model, machine, replace(settings, **change), [devices])[0] for name, change in changes.items()
    }
