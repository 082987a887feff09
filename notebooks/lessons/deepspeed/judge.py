"""Judges the exercises of 06b_deepspeed: a configuration, and clipping a gradient that the ranks have in shards."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from workshop_lib.exercises.judge import is_number, own_or_solution, shown
from workshop_lib.exercises.play import Edit, played

NOTEBOOK = "06b_deepspeed"
written = partial(own_or_solution, notebook=NOTEBOOK)


class Wanted(NamedTuple):
    """The arguments of one call of the learner's `configuration`."""

    global_batch: int
    ranks: int
    largest_micro_batch: int  # samples that fit into a rank's memory at once
    stage: int


WANTED = [Wanted(128, 2, 64, 1), Wanted(128, 2, 16, 2), Wanted(96, 4, 9, 3), Wanted(8, 8, 64, 0)]
ZERO = "zero_optimization"
UNTESTED = "zero_allow_untested_optimizer"
CLIPPING = "gradient_clipping"
BATCH = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"


def batches(config: dict, ranks: int) -> tuple[float, float]:
    """Samples per rank and backward pass, and backward passes per step, as DeepSpeed reads them from a configuration.

    A configuration may leave out one of the global batch and these two numbers, because DeepSpeed computes it from the
    rest. If it gives only a batch size, a step is one backward pass.
    """
    micro, steps, whole = (config.get(name) for name in (MICRO, STEPS, BATCH))
    if micro is None:
        steps = steps or 1
        micro = (whole or 0) / ranks / steps
    elif steps is None:
        steps = whole / micro / ranks if whole else 1
    return micro, steps


def play_configuration(configuration: Callable, comm) -> Iterator[tuple]:
    """Ask for several configurations, and read them as DeepSpeed does."""
    configs = [configuration(*wanted) for wanted in WANTED]
    observed = f"it returned {shown(configs[0])}:"
    advice = "return a dictionary, or what `json.loads` makes of a JSON file."
    yield "it returns a dictionary", all(isinstance(config, dict) for config in configs), observed, advice
    stages = [config[ZERO].get("stage") if isinstance(config.get(ZERO), dict) else None for config in configs]
    yield "it says which stage", stages, "", 'the stage is nested: `"zero_optimization": {"stage": stage}`.'
    pairs = [(wanted, *batches(config, wanted.ranks)) for wanted, config in zip(WANTED, configs, strict=True)]
    given = [config[name] for config in configs for name in (BATCH, MICRO, STEPS) if name in config]
    are_ints = all(isinstance(number, int) for number in given)
    are_whole = all(micro % 1 == 0 and steps % 1 == 0 for _, micro, steps in pairs)
    yield "samples and steps are whole numbers", are_ints and are_whole, "", "`//` divides without a remainder."
    samples = [micro * steps * wanted.ranks for wanted, micro, steps in pairs]
    observed = "a step sees micro-batch × accumulation steps × ranks samples:"
    yield "a step sees the global batch", samples, observed, "is one of the three missing?"
    wholes = [config.get(BATCH, wanted.global_batch) for wanted, config in zip(WANTED, configs, strict=True)]
    advice = "The three keys contradict each other, and DeepSpeed refuses that. Leave `train_batch_size` out."
    yield "the numbers agree", wholes, "", advice
    text = "a backward pass gets the largest micro-batch that fits into memory and divides a rank's samples"
    yield text, [micro for _, micro, _ in pairs]
    yield "PyTorch's SGD is allowed", all(config.get(UNTESTED) is True for config in configs)
    unclipped = all(config.get(CLIPPING) == 0 and is_number(config.get(CLIPPING)) for config in configs)
    yield "gradients aren't clipped", unclipped


configuration = played(
    "configuration",
    NOTEBOOK,
    play_configuration,
    [
        Edit("a rank has only its part of the global batch.", ("global_batch // ranks", "global_batch")),
        Edit(
            "a backward pass gets more samples than fit into memory. Accumulate more, smaller micro-batches.",
            ("max(m for m in range(1, largest_micro_batch + 1) if mine % m == 0)", "mine"),
        ),
        Edit(
            f"DeepSpeed refuses PyTorch's SGD unless you set `{UNTESTED}` to True.",
            ('"zero_allow_untested_optimizer": True,', ""),
        ),
        Edit(
            f"without `{CLIPPING}` DeepSpeed clips gradients to a norm of 1, silently. Set it to 0.",
            ('"gradient_clipping": 0.0,', ""),
        ),
    ],
    communicates=False,
    watched=False,  # other keys than the solution's may say the same
)


MAX_NORM = 2.0


def play_clip(clip: Callable, comm) -> Iterator[tuple]:
    """Clip a gradient that is too long, a short one, and one of which the last rank has no shard."""
    random = np.random.default_rng(comm.rank)
    cases = {
        "too long": [random.normal(size=n) + 2 for n in (5, 3)],
        "short enough": [random.normal(size=3) / 100],
        "in no shard on the last rank": [random.normal(size=4) + 3] * (comm.rank < comm.size - 1),
    }
    norms = {title: clip(shards, MAX_NORM, comm) for title, shards in cases.items()}
    for title, norm in norms.items():
        yield "it returns the norm of the whole gradient", norm, f"for a gradient that is {title}"
    text = "the shards are scaled in place, by the same factor on all ranks"
    for title, shards in cases.items():
        yield text, shards, f"of a gradient that is {title}"


_ALL = "comm.allreduce(squares) ** 0.5"
clip = played(
    "clip",
    NOTEBOOK,
    play_clip,
    [
        Edit("that's the norm of this rank's shards alone: add up the squares of all ranks.", (_ALL, "squares**0.5")),
        Edit("norms don't add up, but their squares do: take the root last.", (_ALL, "comm.allreduce(squares**0.5)")),
        Edit("a gradient that is short enough stays as it is.", ("norm > max_norm", "norm > 0")),
        Edit(
            "change the arrays themselves: `shard *= …` writes into an array.",
            ("shard *= max_norm / norm", "shard = shard * max_norm / norm"),
        ),
    ],
    returns="the norm before clipping",
    stuck="every rank must call `comm.allreduce` equally often, even if it has no shards.",
)
