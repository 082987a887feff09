"""How 12_thousand_ranks checks its exercises: the bytes that ranks of a mesh send, and the best mesh for a cluster.

The notebook also shows CLUSTERS, and the default mesh beside the learner's.
"""

from collections.abc import Callable, Iterator
from statistics import geometric_mean
from typing import NamedTuple

from workshop_lib.judge import Exercise, Mistake, Property
from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.forecasting import catalogue
from workshop_lib.lessons.thousand_ranks import meshes
from workshop_lib.lessons.thousand_ranks.meshes import Gpt, Mesh, Plan

NOTEBOOK = "12_thousand_ranks"
# Each case is (data, tensor, layers, cut, whole, activations). Tensor parallelism cuts `cut` bytes of a layer's weights
# and leaves `whole` bytes uncut; the layer passes on `activations` bytes. Every mesh divides these numbers evenly.
STEPS = [
    ("FSDP alone", (8, 1, 2, 4096, 1024, 2048)),
    ("tensor parallelism alone", (1, 4, 2, 4096, 1024, 2048)),
    ("both", (4, 2, 3, 8192, 1024, 2048)),
    ("1,024 ranks", (64, 16, 12, 65536, 4096, 8192)),
]


def play_bytes(mesh_bytes: Callable, comm) -> Iterator[tuple]:
    sent = [(text, numbers, mesh_bytes(*numbers)) for text, numbers in STEPS]
    for dimension in ("data", "tensor"):
        for text, (data, tensor, *_), of_rank in sent:
            given = f"for the bytes over {dimension} on a mesh of {data}x{tensor}"
            yield f"over {dimension}: {text}", of_rank[dimension], given


WEIGHTS = "cut / tensor + whole"
mesh_bytes = played(
    "mesh_bytes",
    NOTEBOOK,
    play_bytes,
    [
        Edit(
            "FSDP gathers a layer twice, in forward and again in backward, and reduces its gradients once: three "
            "times.",
            ("3 * (data", "2 * (data"),
        ),
        Edit(
            "a data group only gathers what its tensor rank computes with: divide the weights that are cut by "
            "`tensor`.",
            (WEIGHTS, "cut + whole"),
        ),
        Edit(
            "`whole` isn't cut by tensor parallelism: each tensor rank has all of it.",
            (WEIGHTS, "(cut + whole) / tensor"),
        ),
        Edit(
            "a rank already has its own share, and never sends more than (p - 1) / p of an array in a ring.",
            ("(data - 1) / data * ", ""),
        ),
        Edit(
            "a rank passes on the parts of all the others, not just its own share: (p - 1) / p of the array.",
            ("(data - 1) / data", "1 / data"),
        ),
        Edit("those are the bytes of a single layer: multiply by `layers`.", ("layers * over_data", "over_data")),
        Edit(
            "that's half. Backward has two allreduces per layer, too, and an allreduce sends 2 (p - 1) / p of the "
            "array.",
            ("4 * 2 *", "4 *"),
        ),
        Edit(
            "activations aren't cut: every tensor rank has those of all its samples, and adds up whole arrays.",
            ("* activations", "* activations / tensor"),
        ),
        Edit(
            "a rank sends 2 (p - 1) / p of the array in an allreduce, not twice the array.",
            ("(tensor - 1) / tensor * ", ""),
        ),
    ],
    returns="the bytes over each dimension",
    communicates=False,
)


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
