"""How 12_thousand_ranks checks its exercises: the bytes that ranks of a mesh send, and a mesh.py whose model fits.

The first is a formula. The second is an edit of the script, which a dry run judges.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping

from workshop_lib.dryrun.dry_run import dry_run
from workshop_lib.dryrun.step_report import Report
from workshop_lib.errors import InputError
from workshop_lib.exercises.judge import Verdict, own_or_solution
from workshop_lib.exercises.play import Edit, played
from workshop_lib.forecast.forecast import Mesh, mesh_shape

from lessons.thousand_ranks import edited

NOTEBOOK = "12_thousand_ranks"
written = functools.partial(own_or_solution, notebook=NOTEBOOK)
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
            ("cut / tensor + whole", "cut + whole"),
        ),
        Edit(
            "that's half. Backward has two allreduces per layer, too, and an allreduce sends 2 (p - 1) / p of the "
            "array.",
            ("4 * 2 *", "4 *"),
        ),
    ],
    returns="the bytes over each dimension",
    communicates=False,
)


# Each case is (compute_s, tensor_s, hideable_s, exposed_s, late_s).
PARTS = [
    ("every message is hidden", (1.0, 0.0, 0.5, 0.0, 0.0)),
    ("a rank waits for tensor messages", (1.0, 0.25, 1.125, 0.0625, 0.0)),
    ("the first and the last message show", (1.0, 0.25, 0.5, 0.125, 0.0)),
    ("the network is slower than the rank", (1.0, 0.25, 2.0, 0.125, 0.0)),
    ("a late rank, and longer waits for messages", (1.0, 0.25, 2.0, 0.125, 0.5)),
    ("a late rank, and shorter waits for messages", (1.0, 0.0625, 0.5, 0.125, 0.5)),
]


def play_step(step_s: Callable, comm) -> Iterator[tuple]:
    for text, parts in PARTS:
        given = "with compute_s={:g}, tensor_s={:g}, hideable_s={:g}, exposed_s={:g} and late_s={:g}".format(*parts)
        yield text, step_s(*parts), given


HIDDEN = "max(hideable_s - busy_s, 0)"
step_s = played(
    "step_s",
    NOTEBOOK,
    play_step,
    [
        Edit("that waits for every message over data, but they travel while the rank is busy.", (HIDDEN, "hideable_s")),
        Edit(
            "messages that take less time than the rank is busy are hidden: nothing is left to wait for, not less "
            "than nothing.",
            (HIDDEN, "hideable_s - busy_s"),
        ),
        Edit(
            "a rank waits for tensor messages in every layer, so computing can't hide them.",
            ("tensor_s + unhidden_s", "unhidden_s"),
        ),
        Edit(
            "ranks that wait for messages wait for the slowest rank at the same time: the longer of the two counts.",
            ("max(waiting_s, late_s)", "waiting_s + late_s"),
        ),
        Edit(
            "nothing is computed before the first message or after the last one: add `exposed_s`.", (" + exposed_s", "")
        ),
    ],
    returns="the seconds",
    communicates=False,
)


def beside_dry_runs(
    mesh_bytes: Callable, runs: Mapping[str, Report], width: int, tokens: int, layers: int, batch: int
) -> dict[str, dict[str, float]]:
    """What the learner's `mesh_bytes` gives for this GPT, and what dry runs sent, in MB per dimension: one row each.

    runs: dry runs of mesh.py in fp32 by the shape of their mesh. The embedding, the last layer and the last norm are
    added to the learner's bytes: FSDP gathers them only once per step.
    """
    cut_bytes = 4 * (12 * width**2 + 4 * width)
    whole_bytes = 4 * 5 * width
    ends_bytes = 4 * (2 * 256 * width + 256 + 2 * width)
    rows = {}
    for shape, run in runs.items():
        data, tensor = mesh_shape(shape)
        formula = mesh_bytes(data, tensor, layers, cut_bytes, whole_bytes, 4 * batch / data * tokens * width)
        over_data = formula["data"] + 2 * (data - 1) / data * ends_bytes
        rows[f"{shape}, your function, MB"] = {"data": over_data / 1e6, "tensor": formula["tensor"] / 1e6}
        rows[f"{shape}, dry run, MB"] = {over: run.sent_bytes(over) / 1e6 for over in ("data", "tensor")}
    return rows


# What exercise 1 trains, a GPT of 6.7 billion parameters on 512 H100, and what of their 80 GB its tensors may take.
OPTIONS = ["--width", 4096, "--heads", 32, "--layers", 32, "--tokens", 2048, "--vocabulary", 50_304]
OPTIONS += ["--dtype", "bfloat16", "--batch", 1024]
MESH = Mesh(64, 8)
ROOM_BYTES = 0.9 * 80e9
PARAMETERS = 32 * (12 * 4096**2 + 9 * 4096) + (2 * 4096 + 1) * 50_304 + 2 * 4096
ALLREDUCES = 4 * 32  # over the tensor dimension, by the script without a change


@functools.lru_cache(maxsize=4)
def dry_run_with(source: str) -> Report:
    """The dry run of mesh.py with this text of `recompute`. Raises InputError if the script fails."""
    # The script's text is what it trains on, so that's given: the same for every edit.
    options = [*OPTIONS, "--text", edited.SCRIPT]
    return dry_run(edited.with_source(source), *options, world_size=MESH.ranks, mesh=str(MESH))


def report(function: Callable) -> Report:
    """The dry run of mesh.py with the learner's `recompute`. Raises InputError if the script fails."""
    return dry_run_with(edited.source_of(function))


def rules(seen: Report) -> Iterator[tuple[str, str]]:
    """What must hold of the dry run of a script, and a hint where it doesn't."""
    yield "the script runs dry", ""
    parameters = sum(math.prod(shard.shape) for shard in seen.shards)
    hint = f"it trains {parameters:,} parameters, and mesh.py has {PARAMETERS:,}: return as many blocks as you get."
    yield "it's the same model", "" if parameters == PARAMETERS else hint
    allreduces = sum(each.calls for each in seen.collectives if (each.kind, each.over) == ("allreduce", "tensor"))
    hint = "some blocks are computed again, but too few, or all of them at once: wrap each block by itself."
    if allreduces == ALLREDUCES:
        hint = "no block computes its forward pass again: return the wrapped blocks."
    peak = f"the peak is {seen.peak_bytes / 1e9:.1f} GB: {hint}"
    yield f"it fits: at most {ROOM_BYTES / 1e9:.0f} GB", peak if seen.peak_bytes > ROOM_BYTES else ""


def verdict_on(source: str) -> Verdict:
    """The verdict on mesh.py with this text of `recompute`, by its dry run."""
    try:
        seen = dry_run_with(source)
    except InputError as error:
        return Verdict("recompute").follow([("the script runs dry", str(error))])
    return Verdict("recompute").follow(rules(seen))


def recompute(function: Callable) -> Verdict:
    """Run mesh.py dry with the learner's `recompute`, and judge it by what the dry run says."""
    if "NotImplementedError" in function.__code__.co_names:
        return Verdict("recompute")
    return verdict_on(edited.source_of(function)).recorded()
