"""Describe a run of the deadlock explorer of 01_mpi_basics: who waits for whom, what is left over, and a picture."""

from collections.abc import Sequence
from typing import NamedTuple

from mpi4py import MPI

from workshop_lib.lessons.mpi_basics.matching import Operation
from workshop_lib.lessons.mpi_basics.rank_thread import RankCall, RankThread


class Box(NamedTuple):
    """A call in a picture. moment: the run's count of events when the call could return; None while it waits."""

    name: str
    line: int
    moment: int | None
    waits_for: str


class Picture(NamedTuple):
    """A picture of a run.

    lanes: each rank's calls. messages: the sender's and the receiver's call of each message, as (rank, number of the
    call in its lane). ended: whether each rank has ended without an error.
    """

    lanes: list[list[Box]]
    messages: list[tuple[tuple[int, int], tuple[int, int]]]
    ended: list[bool]


def who_waits(ranks: Sequence[RankThread], pending: Sequence[Operation]) -> str:
    """Return one clause for each rank that waits, separated by semicolons."""
    clauses = []
    for rank in ranks:
        if not rank.ended and rank.waiting:
            line = rank.waiting.line
            reasons = "; ".join(_reasons(_open(rank.waiting), ranks, pending))
            clause = (
                f"rank {rank.number} waits in line {line.number}, `{line.text}`, for {_waits_for(rank.waiting, ranks)}"
            )
            clauses.append(clause + (f" ({reasons})" if reasons else ""))
    return "; ".join(clauses)


def _open(call: RankCall) -> Operation:
    """Return the first operation that a call still waits for."""
    return next(operation for operation in call.operations if not (operation.done or operation.left))


def _waits_for(call: RankCall, ranks: Sequence[RankThread]) -> str:
    operation = _open(call)
    if operation.kind == "send":
        return f"rank {operation.peer} to receive"
    if operation.kind in ("recv", "probe"):
        sender = "any rank" if operation.peer == MPI.ANY_SOURCE else f"rank {operation.peer}"
        return f"a message from {sender}" + ("" if operation.tag in (MPI.ANY_TAG, 0) else f" with tag {operation.tag}")
    missing = _missing(operation, ranks)
    if not missing:
        return f"the others to call {operation.name}"
    listed = " and ".join(map(str, missing))
    who = f"rank {listed}" if len(missing) == 1 else f"ranks {listed}"
    return f"{who} to call {operation.name}"


def _missing(part: Operation, ranks: Sequence[RankThread]) -> list[int]:
    there = {each.rank for each in part.group}
    return [rank.number for rank in ranks if rank.number not in there]


def _reasons(operation: Operation, ranks: Sequence[RankThread], pending: Sequence[Operation]) -> list[str]:
    """Return reasons why what a rank waits for may never happen."""
    message = operation.kind in ("send", "recv", "probe")
    others = [operation.peer] if message else _missing(operation, ranks)
    reasons = [f"rank {other} has ended" for other in others if other >= 0 and ranks[other].ended]
    there = [each for each in pending if each.kind == "send" and each.peer == operation.rank]
    if operation.kind in ("recv", "probe") and there:
        tag = f" with tag {there[0].tag}" if operation.peer in (MPI.ANY_SOURCE, there[0].rank) else ""
        reasons.append(f"there is a message from rank {there[0].rank}{tag}")
    return reasons


def left_over(operations: Sequence[Operation], ranks: Sequence[RankThread]) -> list[str]:
    """Return sentences about requests and messages that a run without a failure has left over."""
    waited_for = {id(each) for rank in ranks for call in rank.calls if not call.at_once for each in call.operations}
    notes = []
    for operation in operations:
        place = f"rank {operation.rank}'s {operation.name} in line {operation.line.number}"
        if id(operation) not in waited_for:
            notes.append(f"{place} is never waited for.")
        elif operation.kind == "send" and operation.left and not operation.done:
            notes.append(f"{place} sends a message that rank {operation.peer} never receives.")
    return notes


def picture(ranks: Sequence[RankThread]) -> Picture:
    """Return a picture of the calls and messages so far."""
    lanes: list[list[Box]] = []
    place: dict[int, tuple[int, int]] = {}
    for rank in ranks:
        lanes.append([])
        for number, call in enumerate(rank.calls):
            for operation in call.operations:
                place.setdefault(id(operation), (rank.number, number))
            moments = [operation.started if call.at_once else operation.moment for operation in call.operations]
            moment, waits_for = (max(moments), "") if call.may_return else (None, _waits_for(call, ranks))
            lanes[-1].append(Box(call.name, call.line.number, moment, waits_for))
    received = [each for rank in ranks for call in rank.calls for each in call.operations if each.kind == "recv"]
    messages = {(place[id(each.partner)], place[id(each)]) for each in received if each.partner is not None}
    return Picture(lanes, sorted(messages), [rank.ended and rank.error is None for rank in ranks])
