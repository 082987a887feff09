"""Machines and networks that forecasts know, from machines.toml and models.toml, which name their sources.

08c_forecasting and 12_thousand_ranks forecast what a step takes on them, emulated ranks take the time that it takes on
them, and `workshop preflight` compares the links of a job with theirs.
"""

import functools
import statistics
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path

from workshop_lib.errors import InputError, cause
from workshop_lib.machine.cost_model import allreduce_s
from workshop_lib.quantities import not_negative, positive

HERE = Path(__file__).parent
LAPTOP = "laptop"
IMAGINED = " (imagined)"
# By a machine's `collectives`: the algorithms between nodes of the hierarchical allreduces that it chooses from. With
# each but "hierarchical", it may also choose one ring across all nodes.
HIERARCHICAL: dict[str, tuple[str, ...]] = {
    "ring across nodes": (),
    "hierarchical": ("rabenseifner",),
    "cheapest": ("rabenseifner", "recursive doubling", "ring"),
}


@dataclass(frozen=True)
class Target:
    """An accuracy, and the law of the samples needed to reach it.

    Up to `critical_batch`, doubling the batch nearly halves the steps. Far above it, the steps stay the same, and each
    additional sample is wasted (McCandlish et al. 2018, arXiv:1812.06162, eq. 2.11).
    """

    what: str
    critical_batch: float
    least_samples: float
    source: str

    def samples(self, global_batch: float) -> float:
        """Samples needed to reach the accuracy with this batch."""
        return self.least_samples * (1 + global_batch / self.critical_batch)


@dataclass(frozen=True)
class Model:
    """A network: numbers of parameters, of tensors with a gradient, and of operations to train on one sample.

    models.toml says how they are counted.
    """

    name: str
    what: str
    parameters: int
    tensors: int
    operations: float
    kind: str  # convolutional, transformer or small: decides which share of a device's peak is reached
    source: str
    target: Target | None = None

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients in fp32, in which they are averaged unless compressed, even in mixed precision."""
        return 4 * self.parameters


@dataclass(frozen=True)
class ComputeTime:
    """Seconds of a step on one device, fixed_s + batch · s_per_sample, and the source of these numbers.

    backward_share: the backward pass's share of that time. It is two thirds unless measured, because the backward pass
    does two products for each product of the forward pass (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
    """

    fixed_s: float
    s_per_sample: float
    source: str
    backward_share: float = 2 / 3

    def step_s(self, batch: float) -> float:
        return self.fixed_s + batch * self.s_per_sample


@dataclass(frozen=True)
class Link:
    """The connection from one rank to another: seconds before the first byte, and seconds for each byte."""

    latency_s: float
    s_per_byte: float


@dataclass(frozen=True)
class Machine:
    """A machine of nodes, each with one or more devices. Commands know it by its name, people by its title.

    `inside` links one device to the others of its node; `between` links a whole node to the other nodes.
    """

    name: str
    title: str
    what: str
    device: str
    devices_a_node: int
    collectives: str  # how its devices communicate: one of HIERARCHICAL
    inside: Link
    between: Link
    source: str
    compute: Mapping[str, ComputeTime] = field(default_factory=dict)  # measured times, by model
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)  # peak by precision
    utilization: Mapping[str, float] = field(default_factory=dict)  # achieved share of the peak, by kind of model
    network: tuple[str, ...] = ()  # NCCL's names for the network between nodes, if it isn't TCP or InfiniBand
    imagined: bool = False  # nobody has this machine, and `title`, `what` and `label` say so
    # The following are for emulated ranks alone. One message to another node goes through one of a node's network
    # adapters. `lateness` is by which share of a step's computing time, as a standard deviation, a device is late.
    # With `own_time`, computing takes the CPU time that it takes on the machine that emulates.
    adapters: int = 1
    memory_bytes_per_s: float | None = None
    lateness: float = 0.0
    own_time: bool = False

    def compute_of(self, model: Model) -> ComputeTime:
        """The measured time if there is one, or else operations / (peak · utilization) where that is realistic.

        The peak is the device's highest: the one of bf16 if the device has bf16. Raises InputError where neither time
        is known. For example, VGG-16 was measured above the peak of a P100, because Winograd's algorithm takes fewer
        multiplications, and a small network spends its time on everything but arithmetic.
        """
        if model.name in self.compute:
            return self.compute[model.name]
        share = self.utilization.get(model.kind)
        if share is None:
            raise InputError(
                f"no speed of {model.name} on {self.title} is known, and its peak does not tell: "
                "measure it on one device and give samples_per_s"
            )
        peak = max(self.peak_flops_per_s.values())
        where = f"{share:.0%} of a peak of {peak / 1e12:,.0f} Tflop/s"
        return ComputeTime(0.0, model.operations / (share * peak), where)

    def flop_s(self, kind: str) -> float:
        """Seconds per operation that training a network of this kind reaches.

        Raises InputError if that speed is not known.
        """
        if kind not in self.utilization:
            raise InputError(
                f"the table of machines doesn't say how fast {self.title} computes: let the network stand for one that "
                f"was measured there ({', '.join(self.compute) or 'none was'}), or emulate another machine"
            )
        return 1 / (self.utilization[kind] * max(self.peak_flops_per_s.values()))

    def trains(self, model: Model) -> bool:
        """Whether the time that a step of this network takes is known."""
        return model.name in self.compute or model.kind in self.utilization

    def with_speed(self, model: Model, samples_per_s: float) -> "Machine":
        """A copy of this machine, on which one device was measured to train `model` at `samples_per_s`.

        Raises InputError unless `samples_per_s` is a number above 0.
        """
        positive(samples_per_s=samples_per_s)
        given = ComputeTime(0.0, 1 / samples_per_s, f"given: {samples_per_s:,.0f} samples/s on one device")
        return replace(self, compute={**self.compute, model.name: given})

    def ring_s(self, ranks: int, message_bytes: float, stride: int = 1, network: float = 1.0) -> float:
        """Seconds of an allreduce in one ring through `ranks` ranks that are `stride` apart, one rank per device.

        The slowest link limits the bandwidth. A part passes 2 (ranks - 1) links, of which 2 (nodes - 1) lie between
        nodes. All rings that have a rank in a node share that node's network, which is `network` times as fast as it
        is. NCCL chooses its algorithm by the same model (src/graph/tuning.cc).
        """
        inside = max(1, min(ranks, self.devices_a_node // stride))
        nodes = -(-ranks // inside)
        slowest = self.inside.s_per_byte
        if nodes > 1:
            rings_a_node = min(stride, self.devices_a_node)
            slowest = max(slowest, rings_a_node * self.between.s_per_byte / network)
        links_between = 2 * (nodes - 1)
        links_inside = 2 * (inside * nodes - 1) - links_between
        latency_s = links_inside * self.inside.latency_s + links_between * self.between.latency_s
        return latency_s + allreduce_s("ring", inside * nodes, message_bytes, 0.0, slowest)

    def allreduce_s(self, devices: int, message_bytes: float, network: float = 1.0) -> float:
        """Seconds of one allreduce over `devices` devices, if the network between nodes is `network` times as fast.

        It takes the cheapest way that `collectives` has, because libraries choose by such a model too. Apart from a
        ring across all nodes, there are hierarchical ways. Inside a node, a ring leaves each device with the sum of one
        part and, at the end, passes the parts around. Between nodes, each device exchanges its part with its peers, and
        all devices of a node share its network (Jia et al. 2018, arXiv:1807.11205, section 3.3).
        """
        nodes = -(-devices // self.devices_a_node)
        a_node = min(devices, self.devices_a_node)
        inside_s = allreduce_s("ring", a_node, message_bytes, self.inside.latency_s, self.inside.s_per_byte)
        between = self.between.latency_s, self.between.s_per_byte / network
        ways = [inside_s + allreduce_s(name, nodes, message_bytes, *between) for name in HIERARCHICAL[self.collectives]]
        if self.collectives != "hierarchical":
            ways.append(self.ring_s(devices, message_bytes, network=network))
        return min(ways)

    def allgather_s(self, devices: int, message_bytes: float, network: float = 1.0) -> float:
        """Seconds of one allgather of `message_bytes` in total, or of one reduce-scatter.

        NCCL takes a ring across all nodes for both: its trees are for allreduces. Where a library is hierarchical, they
        are the halves of an allreduce.
        """
        if self.collectives == "hierarchical":
            return self.allreduce_s(devices, message_bytes, network) / 2
        return self.ring_s(devices, message_bytes, network=network) / 2


def laptop(latency_s: float, s_per_byte: float, compute: Mapping[str, ComputeTime]) -> Machine:
    """A machine from measurements: latency and seconds per byte of messages between ranks, and step times by model.

    A forecast assumes that each rank has such a machine to itself, and that all links are like those between its
    ranks. Raises InputError for a negative latency, and unless `s_per_byte` is above 0.
    """
    not_negative(latency_s=latency_s)
    positive(s_per_byte=s_per_byte)
    link = Link(latency_s, s_per_byte)
    what = "a machine as measured, one rank each"
    return Machine(LAPTOP, "this machine", what, "its processor", 1, "cheapest", link, link, "measured", dict(compute))


def model(name: str) -> Model:
    """The network of this name in models.toml. For an unknown name, raises InputError with all names."""
    return _known("model", name, models())


def machine(name: str) -> Machine:
    """The machine of this name in machines.toml, or in a file like it if the name ends in .toml.

    For an unknown name, raises InputError with all names.
    """
    return of_file(Path(name)) if name.endswith(".toml") else _known("machine", name, machines(), f"or {LAPTOP}")


def emulated_machine(name: str) -> Machine:
    """The machine of this name that ranks can emulate, or that of a file if the name ends in .toml.

    For an unknown name, raises InputError with all names.
    """
    return of_file(Path(name)) if name.endswith(".toml") else _known("machine", name, emulated_machines())


def label(name: str) -> str:
    """The name of an emulated machine, for titles and captions: "polaris", but "a100-ethernet (imagined)"."""
    known = emulated_machines().get(name)
    return name + IMAGINED if known and known.imagined else name


def of_file(path: Path) -> Machine:
    """The machine that a TOML file describes as machines.toml does. Raises InputError, naming what is wrong with it."""
    try:
        table = read(path)
    except OSError as error:
        raise InputError(f"{path} can't be read as a machine: {cause(error)}.") from None
    except ValueError as error:
        raise InputError(f"{path} isn't a TOML file: {error}.") from None
    if len(table) != 1 or not all(isinstance(entry, dict) for entry in table.values()):
        raise InputError(f"{path}: a machine's file has one table with a name, as in [mycluster], and tables below it.")
    [(name, entry)] = table.items()
    required = {each.name for each in fields(Machine) if each.default is each.default_factory is MISSING}
    required -= {"name", "inside"}
    known = {each.name for each in fields(Machine)} - {"name"} | {"emulation", "measured", "looked_up"}
    for what, names in (("lacks", required - entry.keys()), ("can't have", entry.keys() - known)):
        if names:
            raise InputError(f"{path}: the machine {name} {what} {', '.join(sorted(names))}.")
    try:
        machine = _machine(name, entry)
        positive(devices_a_node=machine.devices_a_node, adapters=machine.adapters)
    except KeyError as error:
        raise InputError(f"{path}: {error} is missing in a table of the machine {name}.") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: the machine {name} can't be used: {error}.") from None
    if machine.collectives not in HIERARCHICAL:
        raise InputError(f"{path}: collectives {machine.collectives!r}: use {', '.join(HIERARCHICAL)}.")
    return machine


def _known(what: str, name: str, all_of_them: Mapping, *more: str):
    if name not in all_of_them:
        raise InputError(f"{what} {name!r} is not known: choose one of {', '.join([*all_of_them, *more])}")
    return all_of_them[name]


@functools.cache
def models() -> dict[str, Model]:
    """All networks, by name."""
    return {name: _model(name, entry) for name, entry in read(HERE / "models.toml").items()}


def _model(name: str, entry: dict) -> Model:
    target = entry.pop("target", None)
    if target is not None:
        target = Target(target["what"], target["critical_batch"], target["least_samples"], target["source"])
    return Model(name, **entry, target=target)


@functools.cache
def emulated_machines() -> dict[str, Machine]:
    """All machines that ranks can emulate, by name. They include a laptop, which forecasts measure instead."""
    table = read(HERE / "machines.toml")
    also = {entry.pop("also"): name for name, entry in table.items() if "also" in entry}
    known = {name: _machine(name, entry) for name, entry in table.items()}
    return known | {other: replace(known[name], name=other) for other, name in also.items()}


@functools.cache
def machines() -> dict[str, Machine]:
    """All machines that forecasts know, by name."""
    return {name: emulated_machines()[name] for name in read(HERE / "machines.toml") if name != LAPTOP}


def _machine(name: str, entry: dict) -> Machine:
    entry.pop("looked_up", None)
    if "emulation" in entry:
        entry |= {key: value for key, value in entry.pop("emulation").items() if key != "source"}
    between = entry.pop("between")
    entry |= {"inside": _link(entry.pop("inside", between)), "between": _link(between)}
    entry["network"] = tuple(entry.get("network", ()))
    if entry.get("imagined"):
        entry |= {key: entry[key] + IMAGINED for key in ("title", "what")}
    entry["compute"] = {measured["model"]: _compute(measured) for measured in entry.pop("measured", [])}
    for table in ("peak_flops_per_s", "utilization"):
        entry.get(table, {}).pop("source", None)
    return Machine(name, **entry)


def _link(entry: dict) -> Link:
    share = entry.get("achieved_share", 1.0)
    not_negative(latency_s=entry["latency_s"])
    positive(bytes_per_s=entry["bytes_per_s"], achieved_share=share)
    return Link(entry["latency_s"], 1 / (entry["bytes_per_s"] * share))


def _compute(entry: dict) -> ComputeTime:
    """The step time as a function of the batch: proportional to it if measured once, else a line through the points."""
    batches = entry["batch_size"]
    speeds = entry["samples_per_s"]
    backward_share = entry.get("backward_share", ComputeTime.backward_share)
    if len(batches) == 1:
        return ComputeTime(0.0, 1 / speeds[0], entry["source"], backward_share)
    steps_s = [batch / speed for batch, speed in zip(batches, speeds, strict=True)]
    s_per_sample, fixed_s = statistics.linear_regression(batches, steps_s)
    return ComputeTime(fixed_s, s_per_sample, entry["source"], backward_share)


def read(path: Path) -> dict:
    """The content of a TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))
