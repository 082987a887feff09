"""How ranks spent their time, computed from the traces of all ranks (StepTrace)."""

import math
from typing import NamedTuple

COMPUTING, WAITING, COMMUNICATING = KINDS = ("computing", "waiting", "communicating")


class Piece(NamedTuple):
    """What one rank did from start_s to end_s: one of KINDS."""

    kind: str
    start_s: float
    end_s: float


class Timeline(NamedTuple):
    """The same steps on all ranks: each rank's pieces, in order, and when the first rank began each step."""

    pieces: list[list[Piece]]
    steps: list[tuple[int, float]]  # (step, start_s)
    collectives_known: bool  # if False, the computing of several ranks contains communication

    @property
    def seconds(self) -> float:
        """Seconds from the first rank's start of the first step to the last rank's end of the last step."""
        if not self.steps:
            return 0.0
        return max(row[-1].end_s for row in self.pieces) - self.steps[0][1]

    def shares(self) -> list[dict[str, float]]:
        """For each rank, the fraction of its time that it spent on each of KINDS; the fractions sum to 1."""
        return [_shares(row) for row in self.pieces]

    def mean_shares(self) -> dict[str, float]:
        """The fraction of all ranks' time together that was spent on each of KINDS."""
        return _shares([piece for row in self.pieces for piece in row])


def _shares(pieces: list[Piece]) -> dict[str, float]:
    seconds = dict.fromkeys(KINDS, 0.0)
    for kind, start_s, end_s in pieces:
        seconds[kind] += end_s - start_s
    total_s = sum(seconds.values()) or 1.0
    return {kind: spent_s / total_s for kind, spent_s in seconds.items()}


def timeline(traces: list[list], last_s: float = math.inf, last_steps: int | None = None) -> Timeline:
    """Compare the ranks' traces of the steps that all ranks have.

    last_steps: use only this many of the last steps. last_s: use only steps that ended at most this many seconds before
    the last step, on rank 0.

    A rank waits in a collective from its own arrival until the arrival of the last rank, and communicates from then
    until it leaves. Everything else is computing.
    """
    by_step = [{step[0]: step for step in trace} for trace in traces]
    common = sorted(set.intersection(*map(set, by_step))) if by_step else []
    common = common[-(last_steps or 0) :]
    if common:
        since_s = by_step[0][common[-1]][2] - last_s
        common = [step for step in common if by_step[0][step][2] > since_s]
    pieces: list[list[Piece]] = [[] for _ in by_step]
    steps: list[tuple[int, float]] = []
    collectives_known = False
    for step in common:
        traced = [of_rank[step] for of_rank in by_step]
        steps.append((step, min(start_s for _, start_s, _, _ in traced)))
        collectives = list(zip(*(spans for *_, spans in traced), strict=False))  # [collective][rank]
        collectives_known |= bool(collectives)
        all_here_s = [max(start_s for start_s, _ in spans) for spans in collectives]
        for row, (_, start_s, end_s, spans) in zip(pieces, traced, strict=True):
            row += _pieces(start_s, end_s, spans, all_here_s)
    return Timeline(pieces, steps, collectives_known)


def _pieces(start_s: float, end_s: float, spans: tuple, all_here_s: list[float]) -> list[Piece]:
    """The pieces of one step of one rank. all_here_s: when the last rank arrived at each collective of the step."""
    pieces = []
    free_s = start_s
    for (came_s, left_s), last_came_s in zip(spans, all_here_s, strict=False):
        began_s = min(last_came_s, left_s)  # clocks of different hosts may disagree a little
        pieces.append(Piece(COMPUTING, free_s, came_s))
        pieces += [Piece(WAITING, came_s, began_s), Piece(COMMUNICATING, began_s, left_s)]
        free_s = left_s
    return [*pieces, Piece(COMPUTING, free_s, end_s)]
