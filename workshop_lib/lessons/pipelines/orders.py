"""In which order the ranks of a pipeline compute, and what comes of it: whether all of them get to the end, how long
they are idle, and how many micro-batches they keep.

A schedule is a function of (rank, ranks, micro_batches) that returns the operations of that rank in order: ("F", i) is
the forward of micro-batch i, ("B", i) its backward. A rank with several chunks of the network adds the number of the
chunk, and chunk c of rank r is stage c * ranks + r.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from workshop_lib.errors import InputError

Order = Sequence[tuple]  # of operations, as schedules return them


class Operation(NamedTuple):
    """The forward ("F") or backward ("B") of one micro-batch in one chunk of this rank's layers."""

    kind: str
    micro_batch: int
    chunk: int = 0


class Span(NamedTuple):
    """When one operation computed, in seconds or whatever the times are in."""

    kind: str
    micro_batch: int
    chunk: int
    start: float
    end: float


class Simulated(NamedTuple):
    """What came of a schedule: by rank, when each operation computed; and what each rank that is stuck waits for."""

    spans: list[list[Span]]
    stuck: dict[int, str]


class Call(NamedTuple):
    """What a rank does next: "wait" for a message of `peer`, "compute", or "send" a message to `peer`.

    A message is known by the operation that made it: kind, micro-batch and stage.
    """

    name: str
    message: tuple[str, int, int]
    peer: int
    chunk: int


def gpipe(rank: int, ranks: int, micro_batches: int) -> list[tuple]:
    """All forwards, then all backwards (Huang et al. 2019)."""
    return [("F", i) for i in range(micro_batches)] + [("B", i) for i in range(micro_batches)]


def one_f_one_b(rank: int, ranks: int, micro_batches: int) -> list[tuple]:
    """As many forwards ahead as there are ranks behind this one, then a forward and a backward in turn."""
    order = gpipe(rank, ranks, micro_batches)
    return in_turn(order[:micro_batches], order[micro_batches:], ranks - 1 - rank)


def in_turn(forwards: list[tuple], backwards: list[tuple], ahead: int) -> list[tuple]:
    """This many forwards ahead, at most all of them, then a forward and a backward in turn, and the other backwards."""
    ahead = max(0, min(len(forwards), ahead))
    turns = [each for pair in zip(forwards[ahead:], backwards, strict=False) for each in pair]
    return [*forwards[:ahead], *turns, *backwards[len(forwards) - ahead :]]


def interleaved(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[tuple]:
    """1F1B with several chunks per rank, which take turns after `ranks` micro-batches (Narayanan et al. 2021).

    Raises InputError unless the micro-batches divide by the ranks.
    """
    if micro_batches % ranks:
        raise InputError(f"{micro_batches} micro-batches don't divide by {ranks} ranks: take a multiple of {ranks}.")

    def nth(kind: str, n: int) -> tuple:
        turn, within = divmod(n, ranks * chunks)
        chunk, i = divmod(within, ranks)
        return kind, turn * ranks + i, chunk if kind == "F" else chunks - 1 - chunk

    forwards, backwards = ([nth(kind, n) for n in range(micro_batches * chunks)] for kind in "FB")
    return in_turn(forwards, backwards, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)


def bubble_formula(ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """The share of their time that ranks are idle, with equal stages and messages that take no time (1811.06965; with
    chunks 2104.04473, which compares idle time with busy time).
    """
    return (ranks - 1) / (chunks * micro_batches + ranks - 1)


def bubble(spans: Sequence[Sequence[Span]]) -> float:
    """The share of their time that the ranks don't compute, from the first operation's start to the last one's end."""
    every = [span for of_rank in spans for span in of_rank]
    seconds = max(span.end for span in every) - min(span.start for span in every)
    return 1 - sum(span.end - span.start for span in every) / (seconds * len(spans))


def most_alive(order: Order) -> int:
    """The most micro-batches, times chunks, that a rank keeps at once: forward is done, backward isn't yet."""
    alive = most = 0
    for kind, *_ in order:
        alive += 1 if kind == "F" else -1
        most = max(most, alive)
    return most


def fastest(by_rank: Sequence[Sequence]) -> list[list[Span]]:
    """The spans, by rank, of the fastest step, which other programs disturbed least: by_rank[rank][step].spans."""
    turns = [[step.spans for step in turn] for turn in zip(*by_rank, strict=True)]
    return min(turns, key=lambda spans: max(of_rank[-1].end for of_rank in spans))


def typical_times(spans: Sequence[Sequence[Span]]) -> tuple[list[float], list[float]]:
    """How long a forward and a backward took on each stage: medians over the micro-batches."""
    taken: dict[tuple[str, int], list[float]] = defaultdict(list)
    for rank, of_rank in enumerate(spans):
        for span in of_rank:
            taken[span.kind, span.chunk * len(spans) + rank].append(span.end - span.start)
    stages = len(taken) // 2
    forward, backward = ([median(taken[kind, stage]) for stage in range(stages)] for kind in "FB")
    return forward, backward


def simulate(
    orders: Sequence[Order],
    forward: float | Sequence[float] = 1.0,
    backward: float | Sequence[float] = 2.0,
    blocking: bool = False,
) -> Simulated:
    """Let every rank go through its order. Messages take no time.

    forward, backward: how long an operation takes, for all stages or one by one. blocking: whether a send waits until
    its receiver is ready, as MPI's synchronous sends do; otherwise it never waits.
    """
    run = _Run(orders, forward, backward, blocking)
    while any(run.advance(rank) for rank in range(len(orders))):
        pass
    return Simulated(run.spans, {rank: text for rank in range(len(orders)) if (text := run.waits_for(rank))})


class _Run:
    """How far every rank has come."""

    def __init__(self, orders: Sequence[Order], forward, backward, blocking: bool):
        self.ranks, self.blocking = len(orders), blocking
        chunks = 1 + max((Operation(*each).chunk for order in orders for each in order), default=0)
        self.stages = chunks * self.ranks
        times = [each if isinstance(each, Sequence) else [each] * self.stages for each in (forward, backward)]
        self.cost = dict(zip("FB", times, strict=True))
        self.calls = [list(self._calls(rank, order)) for rank, order in enumerate(orders)]
        self.at = [0] * self.ranks
        self.now = [0.0] * self.ranks
        self.there: dict[tuple, float] = {}  # messages that have arrived, and when
        self.spans: list[list[Span]] = [[] for _ in orders]

    def _calls(self, rank: int, order: Order) -> Iterator[Call]:
        for kind, i, chunk in (Operation(*each) for each in order):
            stage = chunk * self.ranks + rank
            source, dest = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
            if kind == "B":
                yield Call("wait", ("kept", i, stage), rank, chunk)
            if 0 <= source < self.stages:
                yield Call("wait", (kind, i, source), source % self.ranks, chunk)
            yield Call("compute", (kind, i, stage), rank, chunk)
            if 0 <= dest < self.stages:
                yield Call("send", (kind, i, stage), dest % self.ranks, chunk)

    def call(self, rank: int) -> Call | None:
        """What the rank does next; None at its end."""
        return self.calls[rank][self.at[rank]] if self.at[rank] < len(self.calls[rank]) else None

    def advance(self, rank: int) -> bool:
        """Make the rank's next call, if it can go on now."""
        call = self.call(rank)
        if call is None or (call.name == "wait" and call.message not in self.there):
            return False
        if call.name == "wait":
            self.now[rank] = max(self.now[rank], self.there[call.message])
        elif call.name == "compute":
            self._compute(rank, call)
        elif self.blocking and call.peer != rank:
            return self._meet(rank, call)
        else:
            self.there[call.message] = self.now[rank]
        self.at[rank] += 1
        return True

    def _compute(self, rank: int, call: Call) -> None:
        (kind, i, stage), start = call.message, self.now[rank]
        self.now[rank] += self.cost[kind][stage]
        self.spans[rank].append(Span(kind, i, call.chunk, start, self.now[rank]))
        if kind == "F":
            self.there["kept", i, stage] = self.now[rank]

    def _meet(self, rank: int, call: Call) -> bool:
        """Hand a message over, if its receiver waits for it."""
        other = self.call(call.peer)
        if other is None or (other.name, other.message) != ("wait", call.message):
            return False
        for each in (rank, call.peer):
            self.at[each] += 1
        self.now[rank] = self.now[call.peer] = max(self.now[rank], self.now[call.peer])
        return True

    def waits_for(self, rank: int) -> str:
        """What a rank that can't go on waits for, in words; empty at its end."""
        call = self.call(rank)
        if call is None:
            return ""
        kind, i, _ = call.message
        if kind == "kept":
            return f"rank {rank} goes backward with micro-batch {i} before it went forward with it"
        if call.name == "send":
            return f"rank {rank} can't send {kind} {i}, because rank {call.peer} isn't receiving it"
        return f"rank {rank} waits for {kind} {i} from rank {call.peer}"
