"""Judges the exercises of 06_zero_and_fsdp: here the bytes per rank that each ZeRO stage leaves.

Stages 1 and 2 are judged in judge_stages.py, and what overlaps in judge_overlap.py.
"""

from collections.abc import Callable, Iterator
from functools import partial

from workshop_lib.judge import own_or_solution
from workshop_lib.judge.play import Edit, played
from workshop_lib.lessons.zero_and_fsdp.judge_overlap import Lookahead, OverlappedZero2
from workshop_lib.lessons.zero_and_fsdp.judge_stages import NOTEBOOK, Zero1, Zero2
from workshop_lib.training import KINDS
from workshop_lib.words import plural

__all__ = ["Lookahead", "OverlappedZero2", "Zero1", "Zero2", "bytes_per_rank", "written"]

written = partial(own_or_solution, notebook=NOTEBOOK)

# (parameters, ranks) for which `bytes_per_rank` is called in every stage.
MODELS = [(1_000, 2), (64, 8), (7_000, 1)]


def play_bytes(bytes_per_rank: Callable, comm) -> Iterator[tuple]:
    calls = [(stage, model, bytes_per_rank(*model, stage)) for stage in range(4) for model in MODELS]
    for kind in KINDS:
        for stage, (parameters, ranks), state in calls:
            text = f"{kind}: stage 0" if stage == 0 else f"{kind}: stages 1 to 3"
            yield text, state[kind], f"for {parameters} parameters on {plural(ranks, 'rank')} in stage {stage}"


bytes_per_rank = played(
    "bytes_per_rank",
    NOTEBOOK,
    play_bytes,
    [
        Edit("that is the number of weights: each takes 4 bytes in fp32.", ('"parameters": 4', '"parameters": 1')),
        Edit("Adam keeps two numbers per weight, of 4 bytes each.", ('"optimizer": 8', '"optimizer": 4')),
        Edit(
            "count only Adam's state: 8 bytes per weight, no copy of the weights.",
            ('"optimizer": 8', '"optimizer": 12'),
        ),
        Edit("from stage 2 on, a rank holds only its shard of `gradients`.", ("stage >= 2", "False")),
        Edit("stage 2 doesn't divide `parameters` yet, so every rank holds all of it.", ("stage >= 3", "stage >= 2")),
    ],
    returns="the bytes of each kind",
    communicates=False,
)
