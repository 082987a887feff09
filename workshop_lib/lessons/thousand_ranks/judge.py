"""How 12_thousand_ranks checks its exercises: the bytes that ranks of a mesh send, and a mesh.py whose model fits.

The first is a formula. The second is an edit of the script, which a dry run judges.
"""

import functools
import math
from collections.abc import Callable, Iterator

from workshop_lib.errors import InputError
from workshop_lib.judge import Verdict, own_or_solution
from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.thousand_ranks import edited, meshes
from workshop_lib.lessons.thousand_ranks.dry_run import dry_run
from workshop_lib.lessons.thousand_ranks.meshes import Gpt, Mesh, Plan
from workshop_lib.lessons.thousand_ranks.step_report import Report
from workshop_lib.machine import catalogue

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
            "a rank already has its own share, and never sends more than (p - 1) / p of an array in a ring.",
            ("(data - 1) / data * ", ""),
        ),
        Edit("those are the bytes of a single layer: multiply by `layers`.", ("layers * over_data", "over_data")),
        Edit(
            "that's half. Backward has two allreduces per layer, too, and an allreduce sends 2 (p - 1) / p of the "
            "array.",
            ("4 * 2 *", "4 *"),
        ),
    ],
    returns="the bytes over each dimension",
    communicates=False,
)


# A GPT of 6.7 billion parameters on 512 H100, and what of their 80 GB its tensors may take.
WIDTH, HEADS, LAYERS, TOKENS, VOCABULARY, BATCH = 4096, 32, 32, 2048, 50_304, 1024
MESH = Mesh(64, 8)
ROOM_BYTES = 0.9 * 80e9
OPTIONS = f"--width {WIDTH} --heads {HEADS} --layers {LAYERS} --tokens {TOKENS} --vocabulary {VOCABULARY}".split()
OPTIONS += f"--dtype bfloat16 --batch {BATCH}".split()
# The script as it is: the allreduces of a block, and the bytes that a rank sends over the data dimension.
ALLREDUCES_A_BLOCK = 4
SENT_BYTES = 8.8e9


@functools.lru_cache(maxsize=4)
def dry_run_with(source: str) -> Report:
    """The dry run of mesh.py with this text of `build`. Raises InputError if the script fails."""
    # The script's text is what it trains on, so that's given: the same for every edit.
    options = [*OPTIONS, "--text", edited.SCRIPT]
    return dry_run(edited.with_source(source), *options, world_size=MESH.ranks, mesh=str(MESH))


def report(function: Callable) -> Report:
    """The dry run of mesh.py with the learner's `build`. Raises InputError if the script fails."""
    return dry_run_with(edited.source_of(function))


def whole_model(data: int = 1, tensor: int = 1) -> float:
    """The elements of mesh.py's parameters, or of one rank's on a mesh; FSDP's padding isn't counted."""
    layer = (12 * WIDTH**2 + 4 * WIDTH) / tensor + 5 * WIDTH
    return (LAYERS * layer + 2 * VOCABULARY * WIDTH + VOCABULARY + 2 * WIDTH) / data


GPT = Gpt(layers=LAYERS, width=WIDTH, parameters=whole_model(), tokens=TOKENS, vocabulary=VOCABULARY)

NOTHING_HINT = (
    "no block computes its forward pass again. `model` has to contain the wrapped blocks, so wrap them before "
    "`nn.Sequential` gets them."
)
TOO_FEW_HINT = "some blocks are computed again, but too few."
UNITS_HINT = "call `fully_shard` for each block, and then for the model. Otherwise a rank gathers all weights at once."


def rules(seen: Report) -> Iterator[tuple[str, str]]:
    """What must hold of the dry run of a script, and a hint where it doesn't."""
    yield "the script runs dry", ""
    parameters = sum(math.prod(shard.shape) for shard in seen.shards)
    hint = (
        f"it trains {parameters:,} parameters, and mesh.py has {round(whole_model()):,}. "
        "Are all blocks in `model`, and is everything in `fully_shard`?"
    )
    yield "it's the same model", "" if parameters == whole_model() else hint
    held = sum(math.prod(shard.local_shape) for shard in seen.shards)
    hint = "a rank holds more than in mesh.py: keep `parallelize_module` and `fully_shard` for every block."
    yield "each rank holds its part of the weights", hint if held > 1.01 * whole_model(MESH.data, MESH.tensor) else ""
    sent_bytes = seen.sent_bytes("data")
    allreduces = sum(each.calls for each in seen.collectives if (each.kind, each.over) == ("allreduce", "tensor"))
    hint = TOO_FEW_HINT
    if sent_bytes < 0.95 * SENT_BYTES:
        hint = UNITS_HINT
    elif allreduces == ALLREDUCES_A_BLOCK * LAYERS:
        hint = NOTHING_HINT
    peak = f"the peak is {seen.peak_bytes / 1e9:.1f} GB: {hint}"
    yield f"it fits: at most {ROOM_BYTES / 1e9:.0f} GB", peak if seen.peak_bytes > ROOM_BYTES else ""
    hint = (
        f"a rank sends {sent_bytes / 1e9:.1f} GB, where mesh.py sends {SENT_BYTES / 1e9:.1f} GB: "
        "FSDP shouldn't gather a block more than twice, or reduce its gradients more than once."
    )
    too_much = sent_bytes > 1.02 * SENT_BYTES
    yield "it sends no more over the data dimension than before", hint if too_much else ""


def verdict_on(source: str) -> Verdict:
    """The verdict on mesh.py with this text of `build`, by what its dry run says. The score is a step's seconds."""
    try:
        seen = dry_run_with(source)
    except InputError as error:
        return Verdict("build").follow([("the script runs dry", str(error))])
    verdict = Verdict("build").follow(rules(seen))
    if verdict.passed:
        made = meshes.forecast(seen, BATCH * GPT.flops, catalogue.machine("h100"), MESH, Plan())
        verdict.score = round(made.step_s, 3)
    return verdict


def build(function: Callable) -> Verdict:
    """Run mesh.py dry with the learner's `build`, and judge it by what the dry run says."""
    if "NotImplementedError" in function.__code__.co_names:
        return Verdict("build")
    return verdict_on(edited.source_of(function)).recorded()
