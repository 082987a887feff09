"""What a training would do on more devices: step time, efficiency, and the time to an accuracy.

A formula with numbers looked up or measured on one device; nothing in it is fitted to a scaling curve. It
takes all devices to be equally fast and never to wait for input, for one another's noise, or for other jobs
on the network: a machine that does worse has something to be looked for.
"""

import math
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from workshop_lib.scaling import cost_model
from workshop_lib.scaling.catalogue import Compute, Machine, Model
from workshop_lib.scaling.cost_model import Link

DEVICES = tuple(2**k for k in range(13))  # 1 to 4,096
MOST = 10**15


@dataclass(frozen=True)
class Backend:
    """How gradients are averaged: in messages of at most so many bytes (None: all in one; 0: one a tensor),
    and whether while backward still runs."""

    message_bytes: int | None
    overlap: bool


BACKENDS = {
    # One Allreduce of all gradients after backward (training/backends).
    "mpi": Backend(None, overlap=False),
    # Buckets of 25 MiB (Li et al. 2020, arXiv:2006.15704, section 3.2.3).
    "ddp": Backend(25 * 2**20, overlap=True),
    # Fusion buffers of 64 MiB (Sergeev and Del Balso 2018, arXiv:1802.05799, section 6).
    "horovod": Backend(64 * 2**20, overlap=True),
    # Each gradient on its own as soon as it is there (Goyal et al. 2017, arXiv:1706.02677, section 4.1).
    "unfused": Backend(0, overlap=True),
}


@dataclass(frozen=True)
class Settings:
    """What a forecast is for. One of batch_size (each device's: weak scaling of a step) and global_batch
    (shared out among the devices: strong scaling) is None.

    compression: by how much the bytes of the gradients are divided, 2 for fp16. network: times as fast as the
    machine's network between nodes, in bytes/s; latencies stay.
    """

    backend: str = "ddp"
    batch_size: int | None = 32
    global_batch: int | None = None
    compression: float = 1.0
    network: float = 1.0
    message_bytes: float | None = None  # of each fused message, instead of the backend's
    overlap: bool | None = None  # instead of the backend's

    def __post_init__(self):
        if self.backend not in BACKENDS:
            raise ValueError(f"backend {self.backend!r} is not known: choose one of {', '.join(BACKENDS)}")
        if (self.batch_size is None) == (self.global_batch is None):
            raise ValueError("give either batch_size, a device's, or global_batch, that of all devices")
        for name in ("batch_size", "global_batch"):
            value = getattr(self, name)
            if value is not None and not (1 <= value <= MOST and value % 1 == 0):
                raise ValueError(f"{name} is {reprlib.repr(value)}: give a whole number from 1 to 10^15")
        for name in ("compression", "network"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}: give a number above 0")
        if self.message_bytes is not None and not self.message_bytes >= 0:
            raise ValueError(f"message_bytes is {self.message_bytes!r}: give bytes, or 0 for a message a tensor")

    @property
    def how(self) -> Backend:
        """The backend, with what these settings change of it."""
        known = BACKENDS[self.backend]
        size = known.message_bytes if self.message_bytes is None else self.message_bytes
        return Backend(size, known.overlap if self.overlap is None else self.overlap)


@dataclass(frozen=True)
class Point:
    """The forecast for one number of devices; seconds are of one step, or to the model's target.

    least_s and most_s bound step_s: everything that can overlaps, and nothing does. time_to_target_s and
    learning (the share of the samples that a small batch would need too) are None where the model has no
    target.
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
        """Communication that computing does not hide."""
        return self.step_s - self.compute_s

    @property
    def device_hours(self) -> float | None:
        """To the target."""
        to = self.time_to_target_s
        return None if to is None else cost_model.device_hours(to, self.devices)


def forecast(
    model: Model, machine: Machine, settings: Settings | None = None, devices: Iterable[int] = DEVICES
) -> list[Point]:
    """One Point for each number of devices; a last node that is not full counts as a full one.

    The efficiency is against one device with the same batch a device, or the same global batch. Raises
    ValueError if a number of devices is no whole number from 1 on, or more than the samples of a global
    batch, and as `Machine.compute_of`.
    """
    settings = settings or Settings()
    return [_point(model, machine, settings, n) for n in devices]


def _point(model: Model, machine: Machine, settings: Settings, devices: int) -> Point:
    batch = _batch_a_device(settings, devices)
    found = machine.compute_of(model)
    compute_s = _compute_s(found, batch)
    messages = _messages(model, settings)
    size = model.gradient_bytes / settings.compression / messages
    message_s = allreduce_s(machine, devices, size, settings.network)
    least_s, most_s = cost_model.step_bounds_s(compute_s, messages * message_s)
    step_s = most_s
    if settings.how.overlap:
        backward_s = found.backward_share * compute_s
        step_s = cost_model.overlapped_step_s(compute_s - backward_s, backward_s, message_s, messages)
    global_batch = round(batch * devices)
    alone = settings.global_batch or batch
    one_device_samples_per_s = alone / _compute_s(found, alone)
    samples_per_s = batch * devices / step_s
    learning = to_target_s = None
    if model.target:
        needed = model.target.critical_batch, model.target.least_samples
        learning = model.target.least_samples / cost_model.samples_to_target(global_batch, *needed)
        to_target_s = cost_model.time_to_target_s(step_s, global_batch, *needed)
    return Point(
        devices, global_batch, messages, compute_s, messages * message_s, least_s, step_s, most_s,
        samples_per_s, samples_per_s / devices / one_device_samples_per_s, learning, to_target_s,
    )  # fmt: skip


def _batch_a_device(settings: Settings, devices: int) -> float:
    if not (1 <= devices <= MOST and devices % 1 == 0):
        raise ValueError(f"devices is {reprlib.repr(devices)}: give a whole number from 1 to 10^15")
    if settings.global_batch is None:
        return settings.batch_size
    if devices > settings.global_batch:
        raise ValueError(
            f"a global batch of {settings.global_batch} cannot be shared out among {devices} devices: ask for fewer"
        )
    return settings.global_batch / devices


def _compute_s(found: Compute, batch: float) -> float:
    return found.fixed_s + batch * found.s_per_sample


def _messages(model: Model, settings: Settings) -> int:
    """As many as fill the buffers, but not more than there are tensors. In truth they differ in size."""
    size = settings.how.message_bytes
    if size is None:
        return 1
    if size == 0:
        return model.tensors
    buffers = math.ceil(model.gradient_bytes / settings.compression / size)
    return max(1, min(model.tensors, buffers))


def allreduce_s(machine: Machine, devices: int, message_bytes: float, network: float = 1.0) -> float:
    """Seconds of one allreduce over `devices` of this machine, whose network is `network` times as fast.

    "cheapest" takes the cheapest of a ring across nodes and, between nodes, each algorithm but the naive one:
    libraries choose by such a model too.
    """
    between = Link(machine.between.latency_s, machine.between.s_per_byte / network)
    nodes = -(-devices // machine.devices_a_node)
    shape = nodes, min(devices, machine.devices_a_node)
    links = machine.inside, between
    ring_s = cost_model.ring_across_nodes_s(*shape, message_bytes, *links)
    if machine.collectives == "ring across nodes":
        return ring_s
    algorithms = ["rabenseifner"]
    if machine.collectives == "cheapest":
        algorithms += ["recursive doubling", "ring"]
    apart = [cost_model.hierarchical_allreduce_s(name, *shape, message_bytes, *links) for name in algorithms]
    return min([ring_s, *apart] if machine.collectives == "cheapest" else apart)


def takes_over(points: Iterable[Point]) -> int | None:
    """The first number of devices at which communication takes longer than computing: from there on no
    overlap can keep a step from becoming longer."""
    return next((point.devices for point in points if point.communication_s > point.compute_s), None)


def outgrows_learning(points: Iterable[Point]) -> int | None:
    """The first number of devices whose global batch is above the critical one: more than half of the samples
    would not have been needed with a small batch."""
    return next((point.devices for point in points if point.learning and point.learning < 0.5), None)


def what_if(model: Model, machine: Machine, settings: Settings, devices: int) -> dict[str, Point]:
    """The same training, each time with one thing changed, on so many devices."""
    how = settings.how
    batch = "global_batch" if settings.batch_size is None else "batch_size"
    changes = {
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
