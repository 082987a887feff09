"""Judges the exercises of 06b_deepspeed: a configuration, and the bytes per rank that each ZeRO stage leaves."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from workshop_lib.judge import Exercise, Mistake, Property, close, is_number, shown
from workshop_lib.lessons.zero_and_fsdp.zero_memory import RECIPES, state_bytes
from workshop_lib.training import KINDS


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
BYTES = dict(zip(KINDS, (4, 4, 8), strict=True))  # bytes per weight, in fp32 with Adam
SHARED_FROM = dict(zip(KINDS, (3, 2, 1), strict=True))  # the first stage that shards each kind


def observe_bytes(comm, function: Callable) -> list[list]:
    """What `function` returns in each stage for each of MODELS."""
    return [[function(parameters, ranks, stage) for parameters, ranks in MODELS] for stage in range(4)]


def bytes_properties(observations: list) -> Iterator[Property]:
    by_stage = observations[0]
    other = [answer for answers in by_stage for answer in answers if not _is_bytes(answer)]
    hint = f"it returned {shown(other[0])}." if other else ""
    yield Property(f"it returns a dictionary with {', '.join(KINDS)}", not other, hint)
    for stage, answers in enumerate(by_stage):
        wrong = [
            f"{parameters} parameters on {ranks} ranks, {kind}: {right} bytes, not {answer[kind]:g}:"
            for (parameters, ranks), answer in zip(MODELS, answers, strict=True)
            for kind, right in state_bytes(parameters, ranks, stage, **RECIPES["fp32, Adam"]).items()
            if not close(answer[kind], right)
        ]
        yield Property(f"stage {stage}", not wrong, evidence=wrong[:1], observed="".join(wrong[:1]))


def _is_bytes(value) -> bool:
    return isinstance(value, dict) and set(value) == set(KINDS) and all(map(is_number, value.values()))


def _bytes(hint: str, each: dict = BYTES, shared_from: dict = SHARED_FROM) -> Mistake:
    """A wrong `bytes_per_rank`, made from its bytes per weight and the first stage that shards each kind."""

    def bytes_per_rank(parameters: int, ranks: int, stage: int) -> dict[str, float]:
        return {kind: each[kind] * parameters / (ranks if stage >= shared_from[kind] else 1) for kind in KINDS}

    return Mistake(bytes_per_rank, hint)


_NUMBERS = "that is the number of weights: each takes 4 bytes in fp32."
_TWO = "Adam keeps two numbers per weight, of 4 bytes each."
_WRONG_BYTES = [
    _bytes(_NUMBERS, {**BYTES, "parameters": 1}),
    _bytes(_NUMBERS, {**BYTES, "gradients": 1}),
    _bytes(_TWO, {**BYTES, "optimizer": 2}),
    _bytes(_TWO, {**BYTES, "optimizer": 4}),
    _bytes("count only Adam's state: 8 bytes per weight, no copy of the weights.", {**BYTES, "optimizer": 12}),
]
for _kind, _stage in SHARED_FROM.items():
    _hint = f"from stage {_stage} on, a rank holds only its share of `{_kind}`."
    _WRONG_BYTES.append(_bytes(_hint, shared_from={**SHARED_FROM, _kind: 4}))
    if _stage > 1:  # not for the optimizer: half of its 8 bytes per weight could also be one of Adam's two numbers
        _hint = f"stage {_stage - 1} doesn't divide `{_kind}` yet, so every rank holds all of it."
        _WRONG_BYTES.append(_bytes(_hint, shared_from={**SHARED_FROM, _kind: _stage - 1}))
bytes_per_rank = Exercise("bytes_per_rank", observe_bytes, bytes_properties, _WRONG_BYTES, communicates=False)
