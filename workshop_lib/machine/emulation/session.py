"""Begin and end the emulation of a machine on this rank."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from workshop_lib.errors import InputError
from workshop_lib.machine import catalogue
from workshop_lib.machine.catalogue import Link, Machine, Model
from workshop_lib.machine.emulation.clock import CLOCK
from workshop_lib.quantities import positive

VARIABLE = "WORKSHOP_MACHINE"  # the name of the machine that a rank emulates from its start
REAL = {name: getattr(time, name) for name in ("perf_counter", "perf_counter_ns")}


class Emulation:
    """The emulation of a machine on this rank. All ranks begin it together, and it blocks until they have.

    From then on `MPI.COMM_WORLD` is a communicator of emulated time, and `time.perf_counter` and `MPI.Wtime` are the
    emulated time. Time-outs use time.monotonic, which stays real.
    """

    def __init__(self, machine: Machine):
        from mpi4py import MPI

        from workshop_lib.machine.emulation.comm import EmulatedComm, EmulatedRequest, Places
        from workshop_lib.machine.emulation.links import Network

        self.machine = machine
        self.model: Model | None = None  # what the small network stands for
        self.device: Any = None
        self.plain = {name: getattr(MPI, name) for name in ("COMM_WORLD", "Request", "Wtime")}
        world = MPI.COMM_WORLD
        self.places = Places(Network(machine, world.size), world.rank)
        self.comm = EmulatedComm.over(world, self.places, world.group)
        replaced = [self.comm, EmulatedRequest, self.read_s]
        for name, value in zip(self.plain, replaced, strict=True):
            setattr(MPI, name, value)
        CLOCK.reset(world.rank, machine.lateness, machine.own_time)
        time.perf_counter = self.read_s
        time.perf_counter_ns = lambda: round(1e9 * self.read_s())

    def read_s(self) -> float:
        """The emulated time of this rank, in seconds. From the first reading on, PyTorch's operations take time."""
        self.begin_device()
        return CLOCK.enter()

    def begin_device(self) -> None:
        if self.device is None and not self.machine.own_time and "torch.optim" in sys.modules:
            from workshop_lib.machine.emulation import device

            if device.may_begin():
                self.device = device.Device(self.machine)

    def declare(self, model: Model, batch: int, network, sample, cut_among: int = 1) -> None:
        """Let a small network stand for `model`: a step has the model's time, and gradients have the model's bytes.

        batch: samples per rank. network, sample: the small network, and one of its inputs, [1, ...]. cut_among: how
        many ranks FSDP cuts each weight for. Raises InputError if the time of such a step on this machine is not known.
        """
        self.model = model
        self.begin_device()
        if self.device is not None:
            real_operations = batch * self.device.mode.operations_of(network, sample)
            self.device.mode.declared_flop_s = self.machine.compute_of(model).step_s(batch) / real_operations
        self.places.scale = model.gradient_bytes / sum(sent_bytes(weight, cut_among) for weight in network.parameters())

    def set_network(self, bytes_per_s: float) -> None:
        """Give the network between nodes this bandwidth from now on. All ranks call it."""
        positive(bytes_per_s=bytes_per_s)
        link = Link(self.machine.between.latency_s, 1 / bytes_per_s)
        inside = self.machine.inside if self.machine.devices_a_node > 1 else link
        self.machine = self.places.network.machine = replace(self.machine, inside=inside, between=link)

    def end(self) -> None:
        """Return to real time and real messages. The emulated communicators stay usable."""
        from mpi4py import MPI

        for name, value in self.plain.items():
            setattr(MPI, name, value)
        for name, value in REAL.items():
            setattr(time, name, value)
        if self.device is not None:
            self.device.remove()
            self.device = None


def sent_bytes(weight, cut_among: int) -> int:
    """The bytes of a weight, [n, ...], as ranks send it whose shares of its first dimension are equally large.

    FSDP pads the last shares. A small network's ten outputs become sixteen on sixteen ranks; a large one's don't grow.
    """
    rows = len(weight)
    padded = -(-rows // cut_among) * cut_among
    return weight.nbytes // rows * padded


class CurrentEmulation:
    """The emulation of this process, or None."""

    emulation: Emulation | None = None


CURRENT = CurrentEmulation()


def start(machine: str | Machine) -> Emulation:
    """Begin to emulate a machine on this rank; all ranks call it. An emulation that is under way ends.

    Raises InputError, naming all machines, if none has this name.
    """
    chosen = catalogue.emulated_machine(machine) if isinstance(machine, str) else machine
    stop()
    CURRENT.emulation = Emulation(chosen)
    return CURRENT.emulation


def stop() -> None:
    """End the emulation of this rank, if there is one. All ranks call it."""
    if CURRENT.emulation is not None:
        CURRENT.emulation.end()
        CURRENT.emulation = None


@contextlib.contextmanager
def emulating(machine: str | None) -> Iterator[Emulation | None]:
    """The emulation of a run: that of this machine, or else that of these ranks, if there is one. All ranks call it.

    Raises InputError if these ranks emulate a different machine.
    """
    running = CURRENT.emulation
    if machine is None or (running is not None and running.machine.name == catalogue.emulated_machine(machine).name):
        yield running
        return
    if running is not None:
        raise InputError(
            f"machine {machine!r}: these ranks emulate {running.machine.name}; leave machine out, or start ranks with "
            f"ranks.start(machine={machine!r})"
        )
    try:
        yield start(machine)
    finally:
        stop()


def label(*machines: str) -> str:
    """The sentence that stands beside times emulated on these machines."""
    return f"All times are emulated on {' and '.join(map(catalogue.label, machines))}."


def settings(machine: str | None) -> dict[str, str]:
    """The environment of ranks that emulate this machine from their start."""
    return {} if machine is None else {VARIABLE: machine}


def start_if_asked() -> bool:
    """Begin the emulation that `ranks.start(machine=...)` asked for, and return whether there is one.

    A rank calls this once, before anything else.
    """
    name = os.environ.get(VARIABLE)
    if name:
        start(name)
    return bool(name)


def current() -> Emulation:
    """The emulation of this rank. Raises InputError if there is none."""
    if CURRENT.emulation is None:
        raise InputError("these ranks emulate no machine: start them with ranks.start(8, machine=...)")
    return CURRENT.emulation
