"""Judges the exercises of 11b_pipelines: a stage, three schedules, and a cut.

All stages run in one process, and a dictionary of arrays takes the place of MPI's messages. Receiving a message that
nobody sent raises an error at once, so nothing can hang. The learner's schedules run on paper, in microseconds.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from workshop_lib.exercises.judge import own_or_solution, shown
from workshop_lib.exercises.network import gradient_of
from workshop_lib.exercises.play import Edit, played
from workshop_lib.words import plural

from lessons.pipelines import orders, pipeline

NOTEBOOK = "11b_pipelines"
written = partial(own_or_solution, notebook=NOTEBOOK)
# Micro-batches, samples per micro-batch, numbers per sample.
M = 4
SAMPLES = 3
WIDTH = 5
STAGES = [(2, orders.gpipe), (3, orders.one_f_one_b), (1, orders.gpipe)]


class Letters:
    """Takes the place of a rank's communicator. All ranks of this process share the dictionary `sent` of messages."""

    def __init__(self, sent: dict[tuple, list[np.ndarray]], rank: int, size: int):
        self.sent = sent
        self.rank = rank
        self.size = size

    def Isend(self, array: np.ndarray, dest: int, tag: int) -> SimpleNamespace:
        self.sent.setdefault((self.rank, dest, tag), []).append(array.copy())
        return SimpleNamespace(Wait=lambda: None)

    def Recv(self, array: np.ndarray, source: int, tag: int) -> None:
        waiting = self.sent.get((source, self.rank, tag))
        if not waiting:
            raise LookupError(f"rank {self.rank} waits for a message that rank {source} never sent")
        np.copyto(array, waiting.pop(0))


@dataclass
class TrainedStages:
    """What one step on all stages left behind."""

    error: str
    gradients: list[np.ndarray]  # one vector per stage
    unread: int  # messages that nobody received
    most_kept: list[int]  # the most micro-batches that each stage kept at once
    kept_at_the_end: int


def _parts(stages: int) -> list[nn.Sequential]:
    torch.manual_seed(1)
    hidden = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages - 1)]
    return [part.double() for part in [*hidden, nn.Sequential(nn.Linear(WIDTH, 3))]]


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    inputs = torch.randn(M * SAMPLES, WIDTH, generator=random, dtype=torch.float64)
    return inputs, torch.randint(3, (M * SAMPLES,), generator=random)


def _trained(make: Callable, size: int, schedule: Callable) -> TrainedStages:
    parts = _parts(size)
    error = ""
    sent: dict[tuple, list[np.ndarray]] = {}
    stages = [pipeline.stages_of_rank(make, parts, Letters(sent, rank, size), (WIDTH,))[0] for rank in range(size)]
    for stage in stages:
        stage.load(*_batch(), M)
    run = orders.on_paper([schedule(rank, size, M) for rank in range(size)])
    spans = [(span, rank) for rank, row in enumerate(run.spans) for span in row]
    most_kept = [0] * size
    try:
        for span, rank in sorted(spans, key=lambda each: each[0].start):
            stage = stages[rank]
            (stage.forward if span.kind == "F" else stage.backward)(span.micro_batch)
            most_kept[rank] = max(most_kept[rank], len(stage.kept))
    except NotImplementedError:
        raise
    except Exception as raised:  # the learner's methods may raise anything, and the check reports it
        kind = "forward" if span.kind == "F" else "backward"
        error = f"in {kind}({span.micro_batch}) of stage {rank} of {size}: {raised}".splitlines()[0][:200]
    unread = sum(len(letters) for letters in sent.values())
    kept = sum(len(stage.kept) for stage in stages)
    return TrainedStages(error, [gradient_of(part) for part in parts], unread, most_kept, kept)


OWN_GRADIENT = (
    "this stage went back from ones, or from a sum. `y.backward(gradient)` takes the gradient that the next stage sent."
)
TAKE_OUT = "take it out when its backward begins: `self.kept.pop(i)`. Otherwise a step keeps everything to its end."


def play_stage(my_stage: Callable, comm) -> Iterator[tuple]:
    """Take one step with the class in each of STAGES."""
    two, three, alone = cases = [_trained(my_stage, size, schedule) for size, schedule in STAGES]
    error = next((seen.error for seen in cases if seen.error), "")
    yield "every operation runs to its end", error, f"{error.removesuffix('.')}."
    unread = two.unread + three.unread + alone.unread
    yield "every message is received", unread, f"nobody received {plural(unread, 'message')}.", OWN_GRADIENT
    for seen, text in (
        (two, "two stages have the gradients of one process"),
        (three, "so have three, with 1F1B"),
        (alone, "so has a single stage"),
    ):
        for stage, gradients in enumerate(seen.gradients):
            yield text, gradients, f"for the layers of stage {stage}"
    keeps = [*two.most_kept, *three.most_kept]
    advice = "keep what backward needs in `self.kept[i]`, so that everyone can see what's still alive."
    yield "`kept` holds what backward will need", min(keeps) > 0, "on some stage `kept` is always empty:", advice
    left = sum(seen.kept_at_the_end for seen in cases)
    yield "a backward takes it out", left, "after a step, `kept` isn't empty:", TAKE_OUT
    yield "so 1F1B keeps no more than it has to", three.most_kept, "with three stages", TAKE_OUT


MyStage = played(
    "MyStage",
    NOTEBOOK,
    play_stage,
    [
        Edit(
            "autograd only computes a gradient by the input if you ask for it: `x.requires_grad_()`, before the layers "
            "compute.",
            (".requires_grad_()", ""),
        ),
        Edit(
            f"they are {M} times too large: each micro-batch adds its own mean. Divide its loss by `self.m`.",
            (" / self.m", ""),
        ),
        Edit(
            OWN_GRADIENT,
            ("y.backward(self.receive_gradient(i))", "y.backward(torch.ones_like(self.receive_gradient(i)))"),
        ),
        Edit(
            "several micro-batches are under way at once. Keep what each backward needs under its number, in "
            "`kept[i]`.",
            ("self.kept[i]", "self.kept[0]"),
            ("self.kept.pop(i)", "self.kept.pop(0)"),
        ),
    ],
    communicates=False,
    unknown="In forward: get the input, compute, send or take the loss, keep. In backward: take out, go back, send.",
)


PLAIN = [(2, 4), (4, 8), (3, 5), (4, 4), (1, 3), (4, 2)]  # (ranks, micro-batches)
CHUNKED = [(2, 4, 2), (4, 8, 2), (2, 2, 3), (3, 6, 2), (1, 2, 2)]  # (ranks, micro-batches, chunks)


class Seen(NamedTuple):
    """What a schedule returned for one case: `orders` has a list of operations per rank, or text for anything else."""

    orders: list
    ranks: int
    micro_batches: int
    chunks: int = 1

    @property
    def name(self) -> str:
        return f"with {self.ranks} ranks and {self.micro_batches} micro-batches"


def play_schedule(rules: list, cases: list, schedule: Callable, comm) -> Iterator[tuple]:
    """Show what a schedule returns for each case. rules: what must hold, what's wrong with a case, and what to do."""
    every = [Seen([_operations(schedule(rank, *case)) for rank in range(case[0])], *case) for case in cases]
    for text, wrong_with, advice in rules:
        wrong = next(filter(None, map(wrong_with, every)), "")
        yield text, wrong, f"{wrong}.", advice


def _operations(returned) -> list[tuple] | str:
    try:
        return [(kind, *map(int, numbers)) for kind, *numbers in returned]
    except (TypeError, ValueError):
        return shown(returned)


def _miscounted(seen: Seen) -> str:
    chunks = [range(seen.chunks)] if seen.chunks > 1 else []
    needed = Counter((kind, *each) for kind in "FB" for each in itertools.product(range(seen.micro_batches), *chunks))
    for rank, order in enumerate(seen.orders):
        if isinstance(order, str):
            return f"it returned {order}, but a list of operations such as {next(iter(needed))} is expected"
        missing = needed - Counter(order)
        extra = Counter(order) - needed
        if missing or extra:
            what = f"lacks {min(missing)}" if missing else f"has {min(extra)} too often"
            return f"{seen.name}, the order of rank {rank} {what}"
    return ""


def _stuck(seen: Seen) -> str:
    stuck = list(orders.on_paper(seen.orders).stuck.values())
    stuck.sort(key=lambda text: "before it went forward" not in text)  # causes before consequences
    return f"{seen.name}, {stuck[0]}" if stuck else ""


def _idle(seen: Seen) -> str:
    share = orders.bubble(orders.on_paper(seen.orders).spans)
    best = orders.bubble_formula(seen.ranks, seen.micro_batches, seen.chunks)
    if share <= best + 1e-9:
        return ""
    return f"{seen.name}, ranks are idle for {share:.0%} of the time, and {best:.0%} is enough"


def _kept(seen: Seen) -> str:
    """A sentence on the first rank that keeps more micro-batches than necessary; empty if there is none.

    With chunks, a rank may be twice as far ahead as necessary, because that hides messages.
    """
    for rank, order in enumerate(seen.orders):
        behind = seen.ranks - 1 - rank
        ahead = 2 * behind + (seen.chunks - 1) * seen.ranks if seen.chunks > 1 else behind
        enough = min(seen.micro_batches * seen.chunks, ahead + 1)
        most = orders.most_alive(order)
        if most > enough:
            return f"{seen.name}, rank {rank} keeps up to {most}, and {enough} is enough"
    return ""


def _mixed(seen: Seen) -> str:
    kinds = ["".join(kind for kind, *_ in order) for order in seen.orders]
    mixed = [each for each in kinds if "BF" in each]
    return f"{seen.name}, a rank does {mixed[0]}" if mixed else ""


ORDER_HINT = "Go backward in the same order on every rank, and never before the rank's own forward."
MIXED_HINT = "GPipe goes forward with all micro-batches before it goes backward with the first."
AHEAD_HINT = "Start with as many forwards as there are ranks *behind* you, then one forward and one backward in turn."
CHUNKS_HINT = (
    "The chunks take turns: `ranks` micro-batches in chunk 0, the same in chunk 1, and so on, then the next. Backward "
    "begins with the last chunk, as soon as it can."
)
ONCE = ("each micro-batch goes forward once, and backward once", _miscounted, "")
END = "all ranks get to the end"
GPIPE = [
    ONCE,
    (END, _stuck, ORDER_HINT),
    ("all forwards come first", _mixed, MIXED_HINT),
    ("no rank is idle longer than (p − 1) / (m + p − 1)", _idle, ORDER_HINT),
]
ONE_F_ONE_B = [
    ONCE,
    (END, _stuck, AHEAD_HINT),
    ("a rank keeps no more than min(m, p − rank) micro-batches", _kept, AHEAD_HINT),
    ("the ranks are idle no longer than with GPipe", _idle, AHEAD_HINT),
]
INTERLEAVED = [
    ONCE,
    (END, _stuck, CHUNKS_HINT),
    ("the ranks are idle no longer than (p − 1) / (v m + p − 1)", _idle, CHUNKS_HINT),
    ("and keep no more than they have to", _kept, CHUNKS_HINT),
]
schedule = partial(played, notebook=NOTEBOOK, communicates=False, watched=False)
gpipe = schedule("gpipe", play=partial(play_schedule, GPIPE, PLAIN))
one_f_one_b = schedule("one_f_one_b", play=partial(play_schedule, ONE_F_ONE_B, PLAIN))
interleaved = schedule("interleaved", play=partial(play_schedule, INTERLEAVED, CHUNKED))

SECONDS = [  # (seconds of each layer, number of stages)
    ([1.0, 1.0, 1.0, 1.0], 2),
    ([1.0, 1.0, 1.0, 6.0, 1.0, 2.0, 2.0], 3),
    ([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0], 4),
    ([7.0, 2.0], 1),
    ([1.0, 1.0, 5.0, 1.0, 4.0, 2.0], 3),  # cutting where a third of the time is over isn't best here
]


def play_balanced(balanced: Callable, comm) -> Iterator[tuple]:
    cuts = [(seconds, stages, balanced(list(seconds), stages)) for seconds, stages in SECONDS]
    for seconds, stages, counts in cuts:
        observed = f"for {len(seconds)} layers in {stages} stages it returned {shown(counts)}:"
        advice = "return how many layers each stage gets, at least 1."
        whole = len(counts) == stages and sum(counts) == len(seconds) and min(counts) >= 1
        yield "each layer is in one stage, and each stage has a layer", whole, observed, advice
    for seconds, _, counts in cuts:
        left = iter(seconds)
        slowest_s = max(sum(itertools.islice(left, int(count))) for count in counts)
        yield "the slowest stage is as fast as possible", slowest_s, f"for the slowest stage of {seconds}"


balanced = played(
    "balanced",
    NOTEBOOK,
    play_balanced,
    [
        Edit(
            "The same number of layers isn't the same time: compare the seconds.",
            ("max(sum(seconds[start:end])", "max(end - start"),
        )
    ],
    returns="how many layers each stage gets",
    communicates=False,
    unknown="The slowest stage sets the pace, so make the largest of the stages' times as small as you can.",
)
