"""Judges the exercises of 06b_deepspeed: a configuration, and the bytes per rank that each ZeRO stage leaves."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from workshop_lib.judge import Exercise, Property, is_number, shown
from workshop_lib.judge.play import Edit, played
from workshop_lib.training import KINDS
from workshop_lib.words import plural

NOTEBOOK = "06b_deepspeed"


class Wanted(NamedTuple):
    """The arguments of one call of the learner's `configuration`."""

    global_batch: int
    ranks: int
    most: int  # the largest number of samples that fit into a rank's memory at once
    stage: int


WANTED = [Wanted(128, 2, 64, 1), Wanted(128, 2, 16, 2), Wanted(96, 4, 9, 3), Wanted(8, 8, 64, 0)]
ZERO = "zero_optimization"
UNTESTED = "zero_allow_untested_optimizer"
CLIPPING = "gradient_clipping"
BATCH = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"


def observe_configuration(comm, function: Callable) -> list:
    return [function(*wanted) for wanted in WANTED]


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


DICTIONARY_HINT = "return a dictionary, or what `json.loads` makes of a JSON file."
STAGE_HINT = 'the stage is nested: `"zero_optimization": {"stage": stage}`.'
SAMPLES_HINT = "a step sees micro-batch × accumulation steps × ranks samples: is one of the three missing?"
MEMORY_HINT = "a backward sees more samples than fit. Take smaller micro-batches, and accumulate more of them."
FEWER_HINT = "smaller micro-batches than needed: each costs messages in stages 2 and 3. Take the largest that divides."
WHOLE_HINT = "the micro-batch and the number of them must be whole numbers: `//` divides without a remainder."
SAME_HINT = "the three keys contradict each other, and DeepSpeed refuses that. Leave `train_batch_size` out."
CLIPPING_HINT = f"without `{CLIPPING}` DeepSpeed clips gradients to a norm of 1, silently. Set it to 0."
UNTESTED_HINT = f"DeepSpeed refuses PyTorch's optimizers unless you set `{UNTESTED}` to True."


def configuration_properties(observations: list) -> Iterator[Property]:
    configs = observations[0]
    other = [config for config in configs if not isinstance(config, dict)]
    hint = f"it returned {shown(other[0])}: {DICTIONARY_HINT}" if other else ""
    yield Property("it returns a dictionary", not other, hint)
    pairs = list(zip(WANTED, configs, strict=True))
    stages = [(config.get(ZERO) if isinstance(config.get(ZERO), dict) else {}).get("stage") for config in configs]
    yield Property("it says which stage", stages == [wanted.stage for wanted in WANTED], STAGE_HINT)
    divided = [(wanted, *batches(config, wanted.ranks)) for wanted, config in pairs]
    given = [config[name] for config in configs for name in (BATCH, MICRO, STEPS) if name in config]
    whole = all(isinstance(number, int) for number in given) and all(m % 1 == steps % 1 == 0 for _, m, steps in divided)
    yield Property("samples and steps are whole numbers", whole, WHOLE_HINT)
    right = all(micro * steps * wanted.ranks == wanted.global_batch for wanted, micro, steps in divided)
    yield Property("a step sees the global batch", right, SAMPLES_HINT)
    same = all(config.get(BATCH, wanted.global_batch) == wanted.global_batch for wanted, config in pairs)
    yield Property("the numbers agree", same, SAME_HINT)
    yield Property("a backward fits into memory", all(micro <= w.most for w, micro, _ in divided), MEMORY_HINT)
    most = [max(m for m in range(1, w.most + 1) if w.global_batch // w.ranks % m == 0) for w in WANTED]
    largest = [micro for _, micro, _ in divided] == most
    yield Property("and is as large as can be", largest, FEWER_HINT)
    yield Property(
        "PyTorch's optimizer is allowed", all(config.get(UNTESTED) is True for config in configs), UNTESTED_HINT
    )
    unclipped = all(config.get(CLIPPING) == 0 and is_number(config.get(CLIPPING)) for config in configs)
    yield Property("gradients aren't clipped", unclipped, CLIPPING_HINT)


configuration = Exercise("configuration", observe_configuration, configuration_properties, communicates=False)

# (parameters, ranks) for which `bytes_per_rank` is called in every stage.
MODELS = [(1_000, 2), (64, 8), (7_000, 1)]


def play_bytes(bytes_per_rank: Callable, comm) -> Iterator[tuple]:
    calls = [(stage, model, bytes_per_rank(*model, stage)) for stage in range(4) for model in MODELS]
    for kind in KINDS:
        for stage, (parameters, ranks), state in calls:
            text = f"{kind}: stage 0" if stage == 0 else f"{kind}: stages 1 to 3"
            yield text, state[kind], f"for {parameters} parameters on {plural(ranks, 'rank')} in stage {stage}"


_NUMBERS = "that is the number of weights: each takes 4 bytes in fp32."
_TWO = "Adam keeps two numbers per weight, of 4 bytes each."
_WRONG_BYTES = [
    Edit(_NUMBERS, ('"parameters": 4', '"parameters": 1')),
    Edit(_NUMBERS, ('"gradients": 4', '"gradients": 1')),
    Edit(_TWO, ('"optimizer": 8', '"optimizer": 2')),
    Edit(_TWO, ('"optimizer": 8', '"optimizer": 4')),
    Edit("count only Adam's state: 8 bytes per weight, no copy of the weights.", ('"optimizer": 8', '"optimizer": 12')),
]
for _stage, _kind in enumerate(reversed(KINDS), start=1):  # the first stage that shards each kind
    _shards = f"stage >= {_stage}"
    _hint = f"from stage {_stage} on, a rank holds only its share of `{_kind}`."
    _WRONG_BYTES.append(Edit(_hint, (_shards, "False")))
    _hint = f"stage {_stage - 1} doesn't divide `{_kind}` yet, so every rank holds all of it."
    _WRONG_BYTES.append(Edit(_hint, (_shards, f"stage >= {_stage - 1}")))
bytes_per_rank = played(
    "bytes_per_rank", NOTEBOOK, play_bytes, _WRONG_BYTES, returns="the bytes of each kind", communicates=False
)
