"""Judges the exercises of 06_zero_and_fsdp: here the bytes per rank that each ZeRO stage leaves.

Stages 1 and 2 are judged in judge_stages.py, and what overlaps in judge_overlap.py.
"""

from collections.abc import Callable, Iterator

from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.zero_and_fsdp.judge_overlap import Lookahead, OverlappedZero2
from workshop_lib.lessons.zero_and_fsdp.judge_stages import NOTEBOOK, Zero1, Zero2
from workshop_lib.training import KINDS
from workshop_lib.words import plural

__all__ = ["Lookahead", "OverlappedZero2", "Zero1", "Zero2", "bytes_per_rank"]

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
    _hint = f"from stage {_stage} on, a rank holds only its shard of `{_kind}`."
    _WRONG_BYTES.append(Edit(_hint, (_shards, "False")))
    _hint = f"stage {_stage - 1} doesn't divide `{_kind}` yet, so every rank holds all of it."
    _WRONG_BYTES.append(Edit(_hint, (_shards, f"stage >= {_stage - 1}")))
bytes_per_rank = played(
    "bytes_per_rank", NOTEBOOK, play_bytes, _WRONG_BYTES, returns="the bytes of each kind", communicates=False
)
