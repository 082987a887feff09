"""The networks and machines that 08c_forecasting can forecast: TOML files in presets/ that name their sources."""

import functools
import statistics
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from workshop_lib.errors import InputError
from workshop_lib.lessons.forecasting import cost_model
from workshop_lib.lessons.forecasting.cost_model import Link
from workshop_lib.quantities import not_negative, positive

PRESETS = Path(__file__).parent / "presets"
LAPTOP = "laptop"


@dataclass(frozen=True)
class Target:
    """An accuracy, and the samples needed to reach it: least_samples (1 + global batch / critical_batch)."""

    what: str
    critical_batch: float
    least_samples: float
    source: str


@dataclass(frozen=True)
class Model:
    """A network: numbers of parameters, of tensors with a gradient, and of operations to train on one sample.

    presets/models.toml says how they are counted.
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
class Machine:
    """A machine of nodes, each with one or more devices. Commands know it by its name, people by its title.

    `inside` links one device to the others of its node; `between` links a whole node to the other nodes.
    """

    name: str
    title: str
    what: str
    device: str
    devices_a_node: int
    collectives: str  # "ring across nodes", "hierarchical", or "cheapest", the cheapest that is modeled
    inside: Link
    between: Link
    source: str
    compute: Mapping[str, ComputeTime] = field(default_factory=dict)  # measured times, by model
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)  # peak by precision
    utilization: Mapping[str, float] = field(default_factory=dict)  # achieved share of the peak, by kind of model
    network: tuple[str, ...] = ()  # NCCL's names for the network between nodes, if it isn't TCP or InfiniBand

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

    def with_speed(self, model: Model, samples_per_s: float) -> "Machine":
        """A copy of this machine, on which one device was measured to train `model` at `samples_per_s`.

        Raises InputError unless `samples_per_s` is a number above 0.
        """
        positive(samples_per_s=samples_per_s)
        given = ComputeTime(0.0, 1 / samples_per_s, f"given: {samples_per_s:,.0f} samples/s on one device")
        return replace(self, compute={**self.compute, model.name: given})

    def allreduce_s(self, devices: int, message_bytes: float, network: float = 1.0) -> float:
        """Seconds of one allreduce over `devices` devices, if the network between nodes is `network` times as fast.

        With "cheapest", the cheapest of these counts: a ring across nodes, and a hierarchical allreduce with each
        algorithm between nodes except the naive one. Libraries choose by such a model too.
        """
        nodes = -(-devices // self.devices_a_node)
        shape = nodes, min(devices, self.devices_a_node)
        links = self.inside, Link(self.between.latency_s, self.between.s_per_byte / network)
        ring_s = cost_model.ring_across_nodes_s(*shape, message_bytes, *links)
        if self.collectives == "ring across nodes":
            return ring_s
        algorithms = ["rabenseifner"]
        if self.collectives == "cheapest":
            algorithms += ["recursive doubling", "ring"]
        apart = [cost_model.hierarchical_allreduce_s(name, *shape, message_bytes, *links) for name in algorithms]
        return min([ring_s, *apart] if self.collectives == "cheapest" else apart)


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
    """The network of this name in presets/models.toml. For an unknown name, raises InputError with all names."""
    return _known("model", name, models())


def machine(name: str) -> Machine:
    """The machine of this name, a file in presets/machines. For an unknown name, raises InputError with all names."""
    return _known("machine", name, machines())


def _known(what: str, name: str, all_of_them: Mapping):
    if name not in all_of_them:
        choices = [*all_of_them, f"or {LAPTOP}"] if what == "machine" else all_of_them
        raise InputError(f"{what} {name!r} is not known: choose one of {', '.join(choices)}")
    return all_of_them[name]


@functools.cache
def models() -> dict[str, Model]:
    """All networks, by name."""
    known = {}
    for name, entry in read(PRESETS / "models.toml").items():
        target = entry.pop("target", None)
        known[name] = Model(name, **entry, target=target and _target(target))
    return known


def _target(entry: dict) -> Target:
    """Fit a Target to the published epochs at several batch sizes: the line with the least squared relative errors.

    critical_batch.fit does the same, with intervals. But it needs NumPy, which a command should not have to load only
    to report a typing error.
    """
    line = [(int(batch), epochs * entry["samples_an_epoch"]) for batch, epochs in entry["epochs"].items()]
    of_one = sum(1 / y for _, y in line)
    of_batch = sum(x / y for x, y in line)
    ones, mixed, batches = (sum(x**power / y**2 for x, y in line) for power in range(3))
    scale = ones * batches - mixed**2
    least = (batches * of_one - mixed * of_batch) / scale
    each = (ones * of_batch - mixed * of_one) / scale
    return Target(entry["what"], least / each, least, entry["source"])


@functools.cache
def machines() -> dict[str, Machine]:
    """All machines, by the names of their files."""
    return {path.stem: _machine(path) for path in sorted((PRESETS / "machines").glob("*.toml"))}


def _machine(path: Path) -> Machine:
    entry = read(path)
    del entry["looked_up"]
    between = entry.pop("between")
    entry |= {"inside": _link(entry.pop("inside", between)), "between": _link(between)}
    entry["network"] = tuple(entry.get("network", ()))
    entry["compute"] = {measured["model"]: _compute(measured) for measured in entry.pop("measured", [])}
    for table in ("peak_flops_per_s", "utilization"):
        entry.get(table, {}).pop("source", None)
    return Machine(path.stem, **entry)


def _link(entry: dict) -> Link:
    return Link(entry["latency_s"], 1 / (entry["bytes_per_s"] * entry["achieved_share"]))


def _compute(entry: dict) -> ComputeTime:
    """The step time as a function of the batch: proportional to it if measured once, else a line through the points."""
    batches = entry["batch_size"]
    speeds = entry["samples_per_s"]
    share = {name: entry[name] for name in ("backward_share",) if name in entry}
    if len(batches) == 1:
        return ComputeTime(0.0, 1 / speeds[0], entry["source"], **share)
    steps_s = [batch / speed for batch, speed in zip(batches, speeds, strict=True)]
    s_per_sample, fixed_s = statistics.linear_regression(batches, steps_s)
    return ComputeTime(fixed_s, s_per_sample, entry["source"], **share)


def read(path: Path) -> dict:
    """The content of a TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))
