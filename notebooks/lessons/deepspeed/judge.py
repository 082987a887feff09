"""Judges the exercises of 06b_deepspeed: the review of a run, a configuration, and clipping a sharded gradient."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from workshop_lib.exercises.judge import is_number, own_or_solution, shown
from workshop_lib.exercises.play import Edit, played

NOTEBOOK = "06b_deepspeed"
written = partial(own_or_solution, notebook=NOTEBOOK)


# Arguments of the learner's `configuration`: the global batch, ranks, the largest micro-batch and the stage.
WANTED = [(128, 2, 64, 1), (128, 2, 16, 2), (96, 4, 9, 3), (8, 8, 64, 0)]
ZERO = "zero_optimization"
UNTESTED = "zero_allow_untested_optimizer"
CLIPPING = "gradient_clipping"
BATCH = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"


def arguments(batch: int, micro_batch: int, saving_ranks: Sequence[int], ranks: int = 2, **more) -> tuple:
    """The arguments of one call of the learner's `problems`."""
    return {BATCH: batch, MICRO: micro_batch, ZERO: {"stage": 3}, **more}, ranks, list(saving_ranks)


WORDS = ("batch", "clipping", "saving")
RUNS = {
    "your colleague's run": arguments(128, 48, [0], bf16={"enabled": True}),
    "a run without faults": arguments(128, 32, [0, 1], gradient_clipping=1.0),
    "a run on 4 ranks without faults": arguments(256, 32, range(4), ranks=4, gradient_clipping=1.0),
    "a run that doesn't clip": arguments(64, 32, [1, 0], gradient_clipping=0.0),
    "a run with 4 accumulation steps": arguments(128, 16, [0, 1], gradient_clipping=1.0, gradient_accumulation_steps=4),
    "a run with too few accumulation steps": arguments(
        128, 16, [0, 1], gradient_clipping=1.0, gradient_accumulation_steps=2
    ),
    "a run of 96 samples in parts of 32": arguments(96, 32, [0, 1], gradient_clipping=1.0),
    "a run with fewer samples than the ranks take": arguments(32, 32, [0, 1], gradient_clipping=1.0),
    "a run in stage 1 that saves on rank 0": arguments(
        64, 32, [0], gradient_clipping=1.0, zero_optimization={"stage": 1}
    ),
    "a run that saves on rank 1": arguments(64, 32, [1], gradient_clipping=1.0),
}


def play_problems(problems: Callable, comm) -> Iterator[tuple]:
    """Review several runs, of which each lacks something else."""
    found = {title: problems(*run) for title, run in RUNS.items()}
    first = next(iter(found.values()))
    are_lists = all(isinstance(words, list | tuple | set) and set(words) <= set(WORDS) for words in found.values())
    text = 'it returns a list of the words "batch", "clipping" and "saving"'
    yield text, are_lists, f"it returned {shown(first)}:", f"the words are {WORDS}."
    for word in WORDS:
        for title, words in found.items():
            observed = f"for {title}, it returns {sorted(words)}."
            yield f'it finds "{word}" where that is wrong, and nowhere else', word in words, observed


_STEPS = 'config.get("gradient_accumulation_steps", batch // samples)'
_SAVING = "set(saving_ranks) != set(range(ranks))"
problems = played(
    "problems",
    NOTEBOOK,
    play_problems,
    [
        Edit(
            "each rank takes a micro-batch: multiply by `ranks`.",
            ('config["train_micro_batch_size_per_gpu"] * ranks', 'config["train_micro_batch_size_per_gpu"]'),
        ),
        Edit("if the accumulation steps are given, they have to agree, too.", (_STEPS, "batch // samples")),
        Edit(
            f"`{CLIPPING}` may be 0, which means that nothing is clipped. What counts is whether the key is there.",
            ('"gradient_clipping" not in config', 'not config.get("gradient_clipping")'),
        ),
        Edit(
            "in every stage, `save_checkpoint` waits for all ranks.",
            (_SAVING, f'{_SAVING} and config["zero_optimization"]["stage"] == 3'),
        ),
        Edit("rank 0 isn't enough: all ranks have to save.", (_SAVING, "0 not in saving_ranks")),
    ],
    communicates=False,
    watched=False,  # a tuple or a set will do
    raised={STEPS: f"`{STEPS}` may be missing: `config.get` has a value for that case."},
)


def play_configuration(configuration: Callable, comm) -> Iterator[tuple]:
    """Ask for several configurations."""
    configs = [configuration(*wanted) for wanted in WANTED]
    observed = f"it returned {shown(configs[0])}:"
    advice = "return a dictionary, or what `json.loads` makes of a JSON file."
    yield "it returns a dictionary", all(isinstance(config, dict) for config in configs), observed, advice
    stages = [config[ZERO].get("stage") if isinstance(config.get(ZERO), dict) else None for config in configs]
    yield "it says which stage", stages, "", 'the stage is nested: `"zero_optimization": {"stage": stage}`.'
    given = [config[name] for config in configs for name in (BATCH, MICRO, STEPS) if name in config]
    are_ints = all(isinstance(number, int) for number in given)
    yield "samples and steps are whole numbers", are_ints, "", "`//` divides without a remainder."
    advice = f"`{BATCH}` counts the samples of all ranks in a step."
    yield "a step sees the global batch", [config.get(BATCH) for config in configs], "", advice
    text = "a backward pass gets the largest micro-batch that fits into memory and divides a rank's samples"
    yield text, [config.get(MICRO) for config in configs]
    advice = f"DeepSpeed refuses sizes that contradict each other. Leave `{STEPS}` out."
    for (global_batch, ranks, *_), config in zip(WANTED, configs, strict=True):
        steps = global_batch // ranks // config[MICRO]
        yield "the numbers agree", config.get(STEPS, steps) == steps, "", advice
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
    watched=False,  # it may also give the accumulation steps
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
