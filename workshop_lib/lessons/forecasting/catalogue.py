"""The networks and machines that can be forecast: small TOML files in presets/, each number with its
source."""

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
    """An accuracy, and the samples to it: least_samples (1 + global batch / critical_batch)."""

    what: str
    critical_batch: float
    least_samples: float
    source: str


@dataclass(frozen=True)
class Model:
    """A network: tensors with a gradient, and operations of training on one sample (see
    presets/models.toml)."""

    name: str
    what: str
    parameters: int
    tensors: int
    operations: float
    kind: str  # convolutional, transformer or small: what share of a peak it reaches depends on it
    source: str
    target: Target | None = None

    @property
    def gradient_bytes(self) -> int:
        """In fp32, as they are averaged unless compressed, in mixed precision too."""
        return 4 * self.parameters


@dataclass(frozen=True)
class Compute:
    """Seconds of a step on one device: fixed_s + batch · s_per_sample, and where they are from.

    backward_share: of that time. Two thirds unless measured: of the operations that is backward's share,
    which does each product of forward twice (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
    """

    fixed_s: float
    s_per_sample: float
    source: str
    backward_share: float = 2 / 3

    def step_s(self, batch: float) -> float:
        return self.fixed_s + batch * self.s_per_sample


@dataclass(frozen=True)
class Machine:
    """Nodes of devices. `inside` is one device's link to the others of its node, `between` the whole
    node's."""

    name: str
    what: str
    device: str
    devices_a_node: int
    collectives: str  # "ring across nodes", "hierarchical", or "cheapest" of all that are modelled
    inside: Link
    between: Link
    source: str
    compute: Mapping[str, Compute] = field(default_factory=dict)  # measured, by model
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)  # by precision
    utilisation: Mapping[str, float] = field(default_factory=dict)  # achieved share of the peak, by kind of model

    def compute_of(self, model: Model) -> Compute:
        """The measured time if there is one, or operations / (peak · utilisation) where that is honest.

        The peak is the highest there is: that of bf16 on devices which have it. Raises InputError where
        neither is known: VGG-16 was measured above the peak of a P100 (fewer multiplications by Winograd's
        algorithm), and a small network waits for everything but arithmetic.
        """
        if model.name in self.compute:
            return self.compute[model.name]
        share = self.utilisation.get(model.kind)
        if share is None:
            raise InputError(
                f"no speed of {model.name} on {self.name} is known, and its peak does not tell: "
                "measure it on one device and give samples_per_s"
            )
        peak = max(self.peak_flops_per_s.values())
        where = f"{share:.0%} of a peak of {peak / 1e12:,.0f} Tflop/s"
        return Compute(0.0, model.operations / (share * peak), where)

    def with_speed(self, model: Model, samples_per_s: float) -> "Machine":
        """The same machine, one device of which was measured to train this model at `samples_per_s`.

        Raises InputError unless that is a number above 0.
        """
        positive(samples_per_s=samples_per_s)
        given = Compute(0.0, 1 / samples_per_s, f"given: {samples_per_s:,.0f} samples/s on one device")
        return replace(self, compute={**self.compute, model.name: given})

    def allreduce_s(self, devices: int, message_bytes: float, network: float = 1.0) -> float:
        """Seconds of one allreduce over `devices`, if the network between nodes is `network` times as fast.

        "cheapest" takes the cheapest of a ring across nodes and, between nodes, each algorithm except the naive
        one: libraries choose by such a model too.
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


def laptop(latency_s: float, s_per_byte: float, compute: Mapping[str, Compute]) -> Machine:
    """A machine as measured: alpha and beta of messages between ranks, and the time of a step by model.

    It is forecast as if each rank had such a machine, and all links were as those between its ranks.
    """
    not_negative(latency_s=latency_s)
    positive(s_per_byte=s_per_byte)
    link = Link(latency_s, s_per_byte)
    what = "a machine as measured, one rank each"
    return Machine(LAPTOP, what, "its processor", 1, "cheapest", link, link, "measured", dict(compute))


def model(name: str) -> Model:
    """The network of this name in presets/models.toml. Raises InputError naming all of them."""
    return _known("model", name, models())


def machine(name: str) -> Machine:
    """The machine of this name, a file in presets/machines. Raises InputError naming all of them."""
    return _known("machine", name, machines())


def _known(what: str, name: str, all_of_them: Mapping):
    if name not in all_of_them:
        raise InputError(
            f"{what} {name!r} is not known: choose one of {', '.join(all_of_them)}"
            + f", or {LAPTOP}" * (what == "machine")
        )
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
    """Fitted to the published epochs at several batches: the line with the least relative errors. (What
    critical_batch.fit does too, with intervals; but it needs NumPy, and a typing error in a command should not.)"""
    line = [(int(batch), epochs * entry["samples_an_epoch"]) for batch, epochs in entry["epochs"].items()]
    of_one, of_batch = sum(1 / y for _, y in line), sum(x / y for x, y in line)
    ones, mixed, batches = (sum(x**power / y**2 for x, y in line) for power in range(3))
    scale = ones * batches - mixed**2
    least, each = (batches * of_one - mixed * of_batch) / scale, (ones * of_batch - mixed * of_one) / scale
    return Target(entry["what"], least / each, least, entry["source"])


@functools.cache
def machines() -> dict[str, Machine]:
    """All machines, by the name of their file."""
    return {path.stem: _machine(path) for path in sorted((PRESETS / "machines").glob("*.toml"))}


def _machine(path: Path) -> Machine:
    entry = read(path)
    del entry["looked_up"]
    between = entry.pop("between")
    entry |= {"inside": _link(entry.pop("inside", between)), "between": _link(between)}
    entry["compute"] = {measured["model"]: _compute(measured) for measured in entry.pop("measured", [])}
    for table in ("peak_flops_per_s", "utilisation"):
        entry.get(table, {}).pop("source", None)
    return Machine(path.stem, **entry)


def _link(entry: dict) -> Link:
    return Link(entry["latency_s"], 1 / (entry["bytes_per_s"] * entry["achieved_share"]))


def _compute(entry: dict) -> Compute:
    """Through one measurement in proportion to the batch, through two a straight line."""
    batches, speeds = entry["batch_size"], entry["samples_per_s"]
    share = {name: entry[name] for name in ("backward_share",) if name in entry}
    if len(batches) == 1:
        return Compute(0.0, 1 / speeds[0], entry["source"], **share)
    steps_s = [batch / speed for batch, speed in zip(batches, speeds, strict=True)]
    s_per_sample, fixed_s = statistics.linear_regression(batches, steps_s)
    return Compute(fixed_s, s_per_sample, entry["source"], **share)


def read(path: Path) -> dict:
    """The content of a TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))
