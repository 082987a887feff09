"""Forecasts a training step on many devices: its seconds, and what they are made of. 08c_forecasting and
12_thousand_ranks use it.

There is one formula, `step_time`. Data-parallel training is a mesh with one tensor rank and one stage. A forecast uses
numbers that were looked up, or measured on one device. They do not say how much later than usual the slowest of the
devices is. This lateness, and how far off a forecast may be, are fitted to published scaling (see published.py, and
Lateness below). The form of the formula was chosen on tables that are held out from this fit, so they are no
independent test of it.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from workshop_lib.errors import InputError
from workshop_lib.machine.catalogue import Machine, Model
from workshop_lib.machine.cost_model import overlapped_step_s, slowest_of
from workshop_lib.quantities import positive, whole

DEVICES = tuple(2**k for k in range(13))  # 1 to 4,096
# In a ring of p ranks, each rank sends (p - 1) / p of the array's bytes this many times (Patarasuk and Yuan 2009;
# arXiv:1910.02054, section 7).
RING = {"allreduce": 2, "allgather": 1, "reduce-scatter": 1}


def mesh_shape(mesh: str) -> tuple[int, ...]:
    """The dimensions of a mesh as numbers, (64, 16) for "64x16". Raises InputError for text of any other form."""
    if not re.fullmatch(r"[1-9]\d{0,5}(x[1-9]\d{0,5})*", mesh):
        raise InputError(f"the mesh {mesh!r} is not known: give its dimensions as in 64x16.")
    return tuple(map(int, mesh.split("x")))


@dataclass(frozen=True)
class Mesh:
    """The number of ranks in each dimension of a mesh.

    The ranks of a tensor group are neighbors, those of a data group are a whole tensor group apart, then come the
    copies of HSDP, and the stages of a pipeline are furthest apart (the order of Narayanan et al. 2021,
    arXiv:2104.04473). copies: how many groups of `data` ranks have all the weights, each for itself.
    """

    data: int
    tensor: int = 1
    pipeline: int = 1
    copies: int = 1

    @property
    def ranks(self) -> int:
        return self.copies * self.data * self.tensor * self.pipeline

    def __str__(self) -> str:
        shape = f"{self.data}x{self.tensor}"
        return f"{shape}x{self.pipeline}" if self.pipeline > 1 else shape


@dataclass
class Collective:
    """All calls of one collective over one dimension of the mesh.

    handed_bytes: the bytes of the whole arrays, that is, what goes into an allreduce or a reduce-scatter, and what
    comes out of an allgather.
    """

    kind: str
    over: str
    ranks: int
    calls: int = 0
    handed_bytes: float = 0

    @property
    def sent_bytes(self) -> float:
        """Bytes that this rank sends if each call is a ring."""
        share = RING[self.kind] * (self.ranks - 1) / self.ranks if self.kind in RING else 1.0
        return share * self.handed_bytes


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
class StepTime:
    """The seconds of a step, and its parts. data_s has all messages between copies of the weights or of their shards.

    least_s and most_s are the range of step_s: with full overlap and no device late, and in the worst case of
    `Lateness`.
    """

    compute_s: float
    tensor_s: float
    data_s: float
    bubble_s: float
    late_s: float
    least_s: float
    step_s: float
    most_s: float


def step_time(
    machine: Machine,
    mesh: Mesh,
    compute_s: float,
    collectives: Iterable[Collective],
    overlap: str,
    bubble_share: float = 0.0,
    backward_share: float = 2 / 3,
    network: float = 1.0,
    lateness: Lateness = LATENESS,
) -> StepTime:
    """Forecast a step in which each rank computes for `compute_s` seconds and takes part in these collectives.

    overlap: what the collectives over data overlap with: "nothing", "backward" (each leaves as soon as its gradients
    are ready), or "everything", as FSDP's do: only the first and the last one show. Tensor parallelism waits for its
    messages. bubble_share: how long the stages of a pipeline are idle, as a share of the time that they are busy.
    network: factor on the bandwidth between nodes. A step takes the longer of what it waits for messages and of what
    the slowest device is late, not their sum. This form was chosen on the held-out tables: it is closest to them (see
    published.py).
    """
    strides = {"tensor": 1, "copies": mesh.tensor * mesh.data}
    collectives = list(collectives)
    over_tensor = [each for each in collectives if each.over == "tensor"]
    over_data = [each for each in collectives if each.over != "tensor"]
    tensor_s = sum(collective_s(machine, each, 1, network) for each in over_tensor)
    data_s = sum(collective_s(machine, each, strides.get(each.over, mesh.tensor), network) for each in over_data)
    calls = sum(each.calls for each in over_data)
    busy_s = compute_s + tensor_s
    bubble_s = busy_s * bubble_share
    exposed_s = data_s
    if overlap == "everything":
        exposed_s = max(data_s - busy_s, 0.0) + 2 * data_s / max(calls, 2)
    elif overlap == "backward" and calls:
        backward_s = backward_share * compute_s
        exposed_s = overlapped_step_s(compute_s - backward_s, backward_s, data_s / calls, calls) - compute_s
    late_s = compute_s * slowest_of(mesh.ranks)
    return StepTime(
        compute_s,
        tensor_s,
        data_s,
        bubble_s,
        lateness.typical * late_s,
        least_s=max(busy_s + bubble_s, data_s),
        step_s=compute_s + max(tensor_s + bubble_s + exposed_s, lateness.typical * late_s),
        most_s=compute_s + lateness.at_worst * late_s + bubble_s + lateness.slower_messages * (tensor_s + data_s),
    )


def collective_s(machine: Machine, each: Collective, stride: int = 1, network: float = 1.0) -> float:
    """Seconds of all calls of one collective between ranks that are `stride` apart.

    An allreduce between neighbors takes the machine's cheapest way. Everything else is a ring, as in NCCL, which has
    trees for allreduces only.
    """
    one_bytes = each.handed_bytes / max(1, each.calls)
    if each.kind == "allreduce" and stride == 1:
        return each.calls * machine.allreduce_s(each.ranks, one_bytes, network)
    return each.calls * machine.ring_s(each.ranks, one_bytes, stride, network) * RING.get(each.kind, 1) / 2


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
        if self.backend not in BACKENDS:
            raise InputError(f"backend {self.backend!r} has no forecast: choose one of {', '.join(BACKENDS)}")
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
class ForecastPoint(StepTime):
    """The forecast for one number of devices. Times are in seconds, per step except for time_to_target_s.

    learning is the share of the samples that a small batch would need too. learning and time_to_target_s are None if
    the model has no target.
    """

    devices: int
    global_batch: int
    messages: int
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
    messages = _messages(model, settings)
    sums = Collective("allreduce", "data", devices, messages, model.gradient_bytes / settings.compression)
    overlap = "backward" if settings.how.overlap else "nothing"
    step = step_time(
        machine,
        Mesh(devices),
        compute.step_s(batch),
        [sums],
        overlap,
        backward_share=compute.backward_share,
        network=settings.network,
        lateness=lateness,
    )
    global_batch = round(batch * devices)
    samples_per_s = batch * devices / step.step_s
    learning = to_target_s = None
    if model.target:
        samples = model.target.samples(global_batch)
        learning = model.target.least_samples / samples
        to_target_s = step.step_s * samples / global_batch
    return ForecastPoint(
        **vars(step),
        devices=devices,
        global_batch=global_batch,
        messages=messages,
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
    return next((point.devices for point in points if point.data_s > point.compute_s), None)


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
