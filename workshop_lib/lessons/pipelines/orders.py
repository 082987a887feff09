"""Schedules of a pipeline, and a simulator: do all ranks finish, how long are they idle, how much do they keep?

11b_pipelines simulates its schedules here.

A schedule is a function of (rank, ranks, micro_batches) that returns the operations of that rank in order: ("F", i) is
the forward of micro-batch i, and ("B", i) its backward. If a rank has several chunks of the network, an operation also
has the number of its chunk. Chunk c of rank r is stage c * ranks + r.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from workshop_lib.errors import InputError

Order = Sequence[tuple]  # the operations of one rank, as a schedule returns them


class MicroBatchPass(NamedTuple):
    """The forward ("F") or backward ("B") of one micro-batch in one chunk of this rank's layers."""

    kind: str
    micro_batch: int
    chunk: int = 0


class Span(NamedTuple):
    """When one operation started and ended, in seconds or in the simulator's unit of time."""

    kind: str
    micro_batch: int
    chunk: int
    start: float
    end: float


class Simulated(NamedTuple):
    """The outcome of a schedule: spans[rank] says when each operation ran, stuck[rank] what a stuck rank waits for."""

    spans: list[list[Span]]
    stuck: dict[int, str]


class SimulatedCall(NamedTuple):
    """One thing that a rank does: "wait" for a message from `peer`, "compute", or "send" a message to `peer`.

    message: the operation that produced the message: its kind, micro-batch and stage.
    """

    name: str
    message: tuple[str, int, int]
    peer: int
    chunk: int


def gpipe(rank: int, ranks: int, micro_batches: int) -> list[tuple]:
    """All forwards, then all backwards (Huang et al. 2019)."""
    return [("F", i) for i in range(micro_batches)] + [("B", i) for i in range(micro_batches)]


def one_f_one_b(rank: int, ranks: int, micro_batches: int) -> list[tuple]:
    """One forward for each rank behind this one, then one forward and one backward in turn (arXiv:2006.09503)."""
    order = gpipe(rank, ranks, micro_batches)
    return in_turn(order[:micro_batches], order[micro_batches:], ranks - 1 - rank)


def in_turn(forwards: list[tuple], backwards: list[tuple], ahead: int) -> list[tuple]:
    """The first `ahead` forwards (at most all), then one forward and one backward in turn, then the other backwards."""
    ahead = max(0, min(len(forwards), ahead))
    turns = [each for pair in zip(forwards[ahead:], backwards, strict=False) for each in pair]
    return [*forwards[:ahead], *turns, *backwards[len(forwards) - ahead :]]


def interleaved(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[tuple]:
    """1F1B with several chunks per rank that take turns every `ranks` micro-batches (Narayanan et al. 2021).

    Raises InputError unless `micro_batches` is a multiple of `ranks`.
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


def simulated(schedule: Callable, ranks: int, micro_batches: int, like: Sequence[Sequence[Span]] = ()) -> list:
    """The spans by rank of a simulated step.

    like: spans by rank of a measured step, whose operations' times it takes; by default, a forward takes 1 and a
    backward 2.
    """
    times = typical_times(like) if like else (1.0, 2.0)
    return simulate([schedule(rank, ranks, micro_batches) for rank in range(ranks)], *times).spans


def idle_rows(schedule: Callable, measured: Mapping[int, Sequence[Sequence[Span]]]) -> dict[int, dict[str, str]]:
    """By number of micro-batches: the idle share by the formula, simulated and measured, and a step's milliseconds."""
    rows = {}
    for m, spans in measured.items():
        rows[m] = {
            "formula": f"{bubble_formula(len(spans), m):.0%}",
            "simulated, with these stages' times": f"{bubble(simulated(schedule, len(spans), m, spans)):.0%}",
            "measured": f"{bubble(spans):.0%}",
            "the step, ms": f"{1e3 * max(of_rank[-1].end for of_rank in spans):.0f}",
        }
    return rows


def typical_times(spans: Sequence[Sequence[Span]]) -> tuple[list[float], list[float]]:
    """The times of a forward and of a backward on each stage: two lists of medians over the micro-batches."""
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
    message: float = 0.0,
) -> Simulated:
    """Simulate a step in which every rank goes through its own order.

    forward, backward: the time of one operation, as one number for all stages or a list with one number per stage.
    blocking: whether a send waits until its receiver is ready, as MPI's synchronous sends do. Otherwise it never waits.
    message: how long a message travels that doesn't wait.
    """
    run = _Run(orders, forward, backward, blocking, message)
    while any(run.advance(rank) for rank in range(len(orders))):
        pass
    return Simulated(run.spans, {rank: text for rank in range(len(orders)) if (text := run.waits_for(rank))})


class _Run:
    """The state of a simulation: how far each rank has come in its order, and at what time."""

    def __init__(self, orders: Sequence[Order], forward, backward, blocking: bool, message: float):
        self.message = message
        self.ranks = len(orders)
        self.blocking = blocking
        chunks = 1 + max((MicroBatchPass(*each).chunk for order in orders for each in order), default=0)
        self.stages = chunks * self.ranks
        times = [each if isinstance(each, Sequence) else [each] * self.stages for each in (forward, backward)]
        self.cost = dict(zip("FB", times, strict=True))
        self.calls = [list(self._calls(rank, order)) for rank, order in enumerate(orders)]
        self.at = [0] * self.ranks
        self.now = [0.0] * self.ranks
        self.there: dict[tuple, float] = {}  # arrival time of each message
        self.spans: list[list[Span]] = [[] for _ in orders]

    def _calls(self, rank: int, order: Order) -> Iterator[SimulatedCall]:
        for kind, i, chunk in (MicroBatchPass(*each) for each in order):
            stage = chunk * self.ranks + rank
            source, dest = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
            if kind == "B":
                yield SimulatedCall("wait", ("kept", i, stage), rank, chunk)
            if 0 <= source < self.stages:
                yield SimulatedCall("wait", (kind, i, source), source % self.ranks, chunk)
            yield SimulatedCall("compute", (kind, i, stage), rank, chunk)
            if 0 <= dest < self.stages:
                yield SimulatedCall("send", (kind, i, stage), dest % self.ranks, chunk)

    def call(self, rank: int) -> SimulatedCall | None:
        """The rank's next call, or None if the rank has finished."""
        return self.calls[rank][self.at[rank]] if self.at[rank] < len(self.calls[rank]) else None

    def advance(self, rank: int) -> bool:
        """Make the rank's next call if it can go on now. Returns whether it could."""
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
            self.there[call.message] = self.now[rank] + (self.message if call.peer != rank else 0.0)
        self.at[rank] += 1
        return True

    def _compute(self, rank: int, call: SimulatedCall) -> None:
        kind, i, stage = call.message
        start = self.now[rank]
        self.now[rank] += self.cost[kind][stage]
        self.spans[rank].append(Span(kind, i, call.chunk, start, self.now[rank]))
        if kind == "F":
            self.there["kept", i, stage] = self.now[rank]

    def _meet(self, rank: int, call: SimulatedCall) -> bool:
        """Deliver a blocking send if its receiver is waiting for the message. Returns whether it was."""
        other = self.call(call.peer)
        if other is None or (other.name, other.message) != ("wait", call.message):
            return False
        for each in (rank, call.peer):
            self.at[each] += 1
        self.now[rank] = self.now[call.peer] = max(self.now[rank], self.now[call.peer])
        return True

    def waits_for(self, rank: int) -> str:
        """What a stuck rank waits for, as text. Empty if the rank has finished."""
        call = self.call(rank)
        if call is None:
            return ""
        kind, i, _ = call.message
        if kind == "kept":
            return f"rank {rank} goes backward with micro-batch {i} before it went forward with it"
        if call.name == "send":
            return f"rank {rank} can't send {kind} {i}, because rank {call.peer} isn't receiving it"
        return f"rank {rank} waits for {kind} {i} from rank {call.peer}"
