"""Schedules of a pipeline, and what they cost: do all ranks finish, how long are they idle, how much do they keep?

In 11b_pipelines, ranks run the schedules. On paper (`on_paper`), a schedule runs in microseconds, however wrong it is:
so the exercises are judged, and so the pictures are drawn that come before them.

A schedule is a function of (rank, ranks, micro_batches) that returns the operations of that rank in order: ("F", i) is
the forward of micro-batch i, and ("B", i) its backward. If a rank has several chunks of the network, an operation also
has the number of its chunk. Chunk c of rank r is stage c * ranks + r.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from workshop_lib.exercises.solutions import Solution

Order = Sequence[tuple]  # the operations of one rank, as a schedule returns them
COST = {"F": 1.0, "B": 2.0}  # how long an operation takes on paper


class MicroBatchPass(NamedTuple):
    """The forward ("F") or backward ("B") of one micro-batch in one chunk of this rank's layers."""

    kind: str
    micro_batch: int
    chunk: int = 0


class Span(NamedTuple):
    """When one operation started and ended, in seconds, or on paper in forward passes."""

    kind: str
    micro_batch: int
    chunk: int
    start: float
    end: float


class OnPaper(NamedTuple):
    """The outcome of a schedule: spans[rank] says when each operation ran, stuck[rank] what a stuck rank waits for."""

    spans: list[list[Span]]
    stuck: dict[int, str]


NOTEBOOK = "11b_pipelines"
gpipe = Solution(NOTEBOOK, "gpipe").load()  # Huang et al. 2019
one_f_one_b = Solution(NOTEBOOK, "one_f_one_b").load()  # arXiv:2006.09503
interleaved = Solution(NOTEBOOK, "interleaved").load()  # Narayanan et al. 2021


def bubble_formula(ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """The share of a step that ranks are idle, if all stages are equal and messages take no time.

    Sources: Huang et al. 2019, arXiv:1811.06965; with chunks, Narayanan et al. 2021, arXiv:2104.04473, whose formula
    compares idle time with busy time instead.
    """
    return (ranks - 1) / (chunks * micro_batches + ranks - 1)


def bubble(spans: Sequence[Sequence[Span]]) -> float:
    """The share of a step that ranks are idle, from the start of the first operation to the end of the last one."""
    every = [span for of_rank in spans for span in of_rank]
    seconds = max(span.end for span in every) - min(span.start for span in every)
    return 1 - sum(span.end - span.start for span in every) / (seconds * len(spans))


def most_alive(order: Order) -> int:
    """The most micro-batches (times chunks) that a rank keeps at once, between their forward and their backward."""
    alive = most = 0
    for kind, *_ in order:
        alive += 1 if kind == "F" else -1
        most = max(most, alive)
    return most


def fastest(by_rank: Sequence[Sequence]) -> list[list[Span]]:
    """The spans by rank of the fastest step, out of by_rank[rank][step].spans: other programs disturbed it least."""
    turns = [[step.spans for step in turn] for turn in zip(*by_rank, strict=True)]
    return min(turns, key=lambda spans: max(of_rank[-1].end for of_rank in spans))


def idle_rows(by_m: Mapping[int, Sequence[Sequence[Span]]]) -> dict[int, dict[str, str]]:
    """By number of micro-batches: the idle share by the formula and on the ranks, and a step's milliseconds."""
    rows = {}
    for m, spans in by_m.items():
        rows[m] = {
            "idle by the formula": f"{bubble_formula(len(spans), m):.1%}",
            "idle": f"{bubble(spans):.1%}",
            "the step, ms": f"{1e3 * max(of_rank[-1].end for of_rank in spans):.0f}",
        }
    return rows


def on_paper(orders: Sequence[Order]) -> OnPaper:
    """Go through a step in which every rank follows its own order, all stages are equal, and messages take no time."""
    passes = [[MicroBatchPass(*each) for each in order] for order in orders]
    ranks = len(orders)
    stages = ranks * (1 + max((each.chunk for order in passes for each in order), default=0))
    spans: list[list[Span]] = [[] for _ in orders]
    ended: dict[tuple[str, int, int], float] = {}
    moving = True
    while moving:
        moving = False
        for rank, order in enumerate(passes):
            for operation in order[len(spans[rank]) :]:
                needed = list(_needed(operation, rank, ranks, stages))
                if any(each not in ended for each in needed):
                    break
                free = spans[rank][-1].end if spans[rank] else 0.0
                start = max([free, *(ended[each] for each in needed)])
                end = start + COST[operation.kind]
                spans[rank].append(Span(*operation, start, end))
                ended[operation.kind, operation.micro_batch, operation.chunk * ranks + rank] = end
                moving = True
    stuck = {}
    for rank, order in enumerate(passes):
        if len(spans[rank]) < len(order):
            operation = order[len(spans[rank])]
            missing = next(each for each in _needed(operation, rank, ranks, stages) if each not in ended)
            stuck[rank] = _waiting(operation, missing, rank, ranks)
    return OnPaper(spans, stuck)


def _needed(operation: MicroBatchPass, rank: int, ranks: int, stages: int) -> Iterator[tuple[str, int, int]]:
    """What has to end before this operation can start: the kind, micro-batch and stage of up to two operations."""
    kind, i, chunk = operation
    stage = chunk * ranks + rank
    if kind == "B":
        yield "F", i, stage
        if stage + 1 < stages:
            yield "B", i, stage + 1
    elif stage:
        yield "F", i, stage - 1


def _waiting(operation: MicroBatchPass, missing: tuple[str, int, int], rank: int, ranks: int) -> str:
    kind, i, stage = missing
    if operation.kind == "B" and kind == "F":
        return f"rank {rank} goes backward with micro-batch {i} before it went forward with it"
    return f"rank {rank} waits for {kind} {i} from rank {stage % ranks}"
