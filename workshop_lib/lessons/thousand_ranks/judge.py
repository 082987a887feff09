"""How 12_thousand_ranks checks its exercises: the bytes that ranks of a mesh send, and the best mesh for a cluster.

The notebook also shows CLUSTERS, and the default mesh beside the learner's.
"""

from collections.abc import Callable, Iterator
from statistics import geometric_mean
from typing import NamedTuple

from workshop_lib.judge import Exercise, Mistake, Property, close, is_number, shown
from workshop_lib.lessons.forecasting import catalogue
from workshop_lib.lessons.thousand_ranks import meshes
from workshop_lib.lessons.thousand_ranks.meshes import Gpt, Mesh, Plan

# Each case is (data, tensor, layers, cut, whole, activations). Tensor parallelism cuts `cut` bytes of a layer's weights
# and leaves `whole` bytes uncut; the layer passes on `activations` bytes. Every mesh divides these numbers evenly.
STEPS = [
    ("FSDP alone", (8, 1, 2, 4096, 1024, 2048)),
    ("tensor parallelism alone", (1, 4, 2, 4096, 1024, 2048)),
    ("both", (4, 2, 3, 8192, 1024, 2048)),
    ("1,024 ranks", (64, 16, 12, 65536, 4096, 8192)),
]


def bytes_sent(data, tensor, layers, cut, whole, activations) -> dict[str, float]:
    """The right answer: bytes that each rank sends over each dimension.

    In each layer, a rank takes part in two allgathers and a reduce-scatter of its tensor rank's weights, and in four
    allreduces of its activations.
    """
    weights = cut / tensor + whole
    return {
        "data": layers * 3 * (data - 1) / data * weights,
        "tensor": layers * 4 * 2 * (tensor - 1) / tensor * activations,
    }


def observe_bytes(comm, function: Callable) -> list:
    """What `function` returns for each of STEPS."""
    return [function(*numbers) for _, numbers in STEPS]


def bytes_properties(observations: list) -> Iterator[Property]:
    found = observations[0]
    right = all(isinstance(each, dict) and set(each) == {"data", "tensor"} for each in found)
    hint = f'it returned {shown(found[0])}: return {{"data": …, "tensor": …}}.'
    yield Property("it returns the bytes over each dimension", right, hint)
    yield Property("as numbers", all(is_number(value) for each in found for value in each.values()), hint)
    for dimension in ("data", "tensor"):
        for (text, numbers), each in zip(STEPS, found, strict=True):
            expected = bytes_sent(*numbers)[dimension]
            mesh = f"on a mesh of {numbers[0]}x{numbers[1]}"
            seen = f"{mesh} it's {expected:,.0f} bytes over {dimension}, not {each[dimension]:,.0f}:"
            evidence = [one[dimension] for one in found]
            yield Property(f"over {dimension}: {text}", close(each[dimension], expected), "", evidence, seen)


def _bytes(hint: str, data: Callable | None = None, tensor: Callable | None = None) -> Mistake:
    """A wrong `mesh_bytes` and its hint: `data` or `tensor` computes wrong bytes for that dimension."""

    def mesh_bytes(d, t, layers, cut, whole, activations):
        right = bytes_sent(d, t, layers, cut, whole, activations)
        if data is not None:
            right["data"] = data(d, t, layers, cut, whole)
        if tensor is not None:
            right["tensor"] = tensor(t, layers, activations)
        return right

    return Mistake(mesh_bytes, hint)


_WRONG_BYTES = [
    _bytes(
        "FSDP gathers a layer twice, in forward and again in backward, and reduces its gradients once: three times.",
        data=lambda d, t, n, cut, whole: n * 2 * (d - 1) / d * (cut / t + whole),
    ),
    _bytes(
        "a data group only gathers what its tensor rank computes with: divide the weights that are cut by `tensor`.",
        data=lambda d, t, n, cut, whole: n * 3 * (d - 1) / d * (cut + whole),
    ),
    _bytes(
        "`whole` isn't cut by tensor parallelism: each tensor rank has all of it.",
        data=lambda d, t, n, cut, whole: n * 3 * (d - 1) / d * (cut + whole) / t,
    ),
    _bytes(
        "a rank already has its own share, and never sends more than (p - 1) / p of an array in a ring.",
        data=lambda d, t, n, cut, whole: n * 3 * (cut / t + whole),
    ),
    _bytes(
        "a rank passes on the parts of all the others, not just its own share: (p - 1) / p of the array.",
        data=lambda d, t, n, cut, whole: n * 3 / d * (cut / t + whole),
    ),
    _bytes(
        "those are the bytes of a single layer: multiply by `layers`.",
        data=lambda d, t, n, cut, whole: 3 * (d - 1) / d * (cut / t + whole),
    ),
    _bytes(
        "that's half. Backward has two allreduces per layer, too, and an allreduce sends 2 (p - 1) / p of the array.",
        tensor=lambda t, n, a: n * 4 * (t - 1) / t * a,
    ),
    _bytes(
        "activations aren't cut: every tensor rank has those of all its samples, and adds up whole arrays.",
        tensor=lambda t, n, a: n * 8 * (t - 1) / t * a / t,
    ),
    _bytes(
        "a rank sends 2 (p - 1) / p of the array in an allreduce, not twice the array.",
        tensor=lambda t, n, a: n * 8 * a,
    ),
]
mesh_bytes = Exercise("mesh_bytes", observe_bytes, bytes_properties, _WRONG_BYTES, communicates=False)


class Cluster(NamedTuple):
    """A model, the machine and the number of ranks that train it, its global batch, and the memory of each rank."""

    model: Gpt
    machine: str
    ranks: int
    global_batch: int
    memory_bytes: float


GIB = 2**30
CLUSTERS = {
    "70B on 512 A100": Cluster(Gpt(80, 8192, 64.86e9, 2048, 50_368), "polaris", 512, 1024, 36 * GIB),
    "175B on 1,024 H100": Cluster(Gpt(96, 12288, 174.6e9, 2048, 51_200), "h100", 1024, 2048, 72 * GIB),
    "13B on 512 H100": Cluster(Gpt(40, 5120, 12.85e9, 2048, 50_368), "h100", 512, 512, 72 * GIB),
}
GAIN = 1.2  # the learner's mesh must be this many times as fast as the default


def try_mesh(cluster: Cluster, mesh: Mesh, plan: Plan) -> meshes.Forecast:
    return meshes.of_formulas(cluster.model, catalogue.machine(cluster.machine), mesh, plan)


def candidates(cluster: Cluster) -> list[tuple[Mesh, Plan]]:
    return meshes.plans(cluster.model, cluster.ranks, cluster.global_batch)


def default(cluster: Cluster) -> tuple[Mesh, Plan]:
    """FSDP over all ranks, one sequence at a time, with recomputing. People begin with this because it always fits."""
    return Mesh(cluster.ranks), Plan(1, cluster.global_batch // cluster.ranks, "full", True)


def right_mesh(cluster: Cluster) -> tuple[Mesh, Plan]:
    fitting = [each for each in candidates(cluster) if try_mesh(cluster, *each).peak_bytes <= cluster.memory_bytes]
    return min(fitting, key=lambda each: try_mesh(cluster, *each).step_s)


class Chosen(NamedTuple):
    """What a chosen mesh and plan lead to: ranks, sequences per step, memory and time."""

    ranks: int
    sequences: int
    peak_bytes: float
    step_s: float


def observe_meshes(comm, function: Callable) -> list[Chosen | None]:
    """What the choice of `function` leads to for each of CLUSTERS, or None if it isn't a mesh with a plan."""
    return [_chosen(cluster, function(cluster, candidates(cluster))) for cluster in CLUSTERS.values()]


def _chosen(cluster: Cluster, choice) -> Chosen | None:
    if not (isinstance(choice, tuple) and len(choice) == 2 and isinstance(choice[0], Mesh)):
        return None
    mesh, plan = choice
    made = try_mesh(cluster, mesh, plan)
    return Chosen(mesh.ranks, mesh.data * plan.micro_batch * plan.micro_batches, made.peak_bytes, made.step_s)


def _whole(cluster: Cluster, chosen: Chosen) -> bool:
    return (chosen.ranks, chosen.sequences) == (cluster.ranks, cluster.global_batch)


def meshes_properties(observations: list) -> Iterator[Property]:
    hint = "return one of `candidates`, a pair of a Mesh and a Plan."
    yield Property("it returns a mesh and a plan", None not in observations[0], hint)
    choices = list(zip(CLUSTERS.items(), observations[0], strict=True))
    steps_s = [chosen.step_s for chosen in observations[0]]  # evidence that tells the known mistakes apart
    for (name, cluster), chosen in choices:
        hint = f"{name}: it has {chosen.ranks:,} ranks and {chosen.sequences:,} sequences. Choose among `candidates`."
        yield Property(f"{name}: all ranks, and the whole batch", _whole(cluster, chosen), hint)
    for (name, cluster), chosen in choices:
        room = cluster.memory_bytes
        seen = f"it takes {chosen.peak_bytes / GIB:,.0f} GiB of {room / GIB:,.0f}:"
        yield Property(f"{name}: it fits", chosen.peak_bytes <= room, "", steps_s, seen)
    for (name, cluster), chosen in choices:
        default_s = try_mesh(cluster, *default(cluster)).step_s
        seen = f"a step takes {chosen.step_s:.1f} s, and {default_s:.1f} s with the default:"
        yield Property(f"{name}: {GAIN - 1:.0%} faster", chosen.step_s * GAIN <= default_s, "", steps_s, seen)
    for (name, cluster), chosen in choices:
        best_s = try_mesh(cluster, *right_mesh(cluster)).step_s
        seen = f"a step takes {chosen.step_s:.2f} s, and one of the others that fit {best_s:.2f} s:"
        yield Property(f"{name}: nothing that fits is faster", chosen.step_s <= 1.001 * best_s, "", steps_s, seen)


def gain(observations: list, passed: bool) -> float | None:
    """How many times as fast as the default the choices are (geometric mean over CLUSTERS). None if one doesn't fit."""
    gains = []
    for chosen, cluster in zip(observations[0], CLUSTERS.values(), strict=True):
        if chosen is None or not _whole(cluster, chosen) or chosen.peak_bytes > cluster.memory_bytes:
            return None
        gains.append(try_mesh(cluster, *default(cluster)).step_s / chosen.step_s)
    return geometric_mean(gains)


def _choose(
    hint: str, key: Callable, fits: Callable = lambda made, cluster: made.peak_bytes <= cluster.memory_bytes
) -> Mistake:
    """A wrong `best_mesh` and its hint: of the choices that `fits` accepts, it takes that with the smallest `key`."""

    def best_mesh(cluster, choices):
        made = {each: try_mesh(cluster, *each) for each in choices}
        left = [each for each in choices if fits(made[each], cluster)]
        return min(left, key=lambda each: key(made[each], each))

    return Mistake(best_mesh, hint)


_WRONG_MESHES = [
    _choose(
        "the fastest of all doesn't fit: first drop what takes more than `cluster.memory_bytes`.",
        lambda made, _: made.step_s,
        lambda *_: True,
    ),
    _choose(
        "that's the one that takes the least memory. What fits is good enough: among those, take the fastest.",
        lambda made, _: made.peak_bytes,
    ),
    _choose(
        "that's the slowest one that fits: take the `min` of `step_s`, or the `max` of `mfu`.",
        lambda made, _: -made.step_s,
    ),
    _choose(
        "the least communication isn't the shortest step: look at `step_s`.",
        lambda made, _: made.tensor_s + made.data_s,
    ),
    _choose(
        "the least arithmetic isn't the shortest step: look at `step_s`.",
        lambda made, _: (made.compute_s, -made.step_s),
    ),
    Mistake(lambda cluster, choices: choices[0], "that's the first candidate: compare all of them."),
    Mistake(lambda cluster, choices: default(cluster), "that's the default itself: compare the candidates."),
]
best_mesh = Exercise("best_mesh", observe_meshes, meshes_properties, _WRONG_MESHES, communicates=False, score=gain)
