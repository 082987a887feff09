"""One run of a program in the deadlock explorer of 01_mpi_basics: all ranks in this process, in an order of its choice.

A rank runs until it has to wait. Once all ranks wait, everything that can happen in only one way happens: a receive
that names its source gets its message, and a collective that all ranks have called ends. What remains are choices:
which message a receive from any source takes, and whether a rank leaves a send (which MPI has then buffered) or a
collective before the other ranks arrive.
"""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from workshop_lib.errors import WorkshopError
from workshop_lib.lessons.mpi_basics import matching
from workshop_lib.lessons.mpi_basics import schedule_report as report
from workshop_lib.lessons.mpi_basics.matching import Operation
from workshop_lib.lessons.mpi_basics.rank_thread import RankThread
from workshop_lib.lessons.mpi_basics.schedule_report import Picture

ENDS = ("send", "recv", "probe")


class Choice(NamedTuple):
    """Something that may happen next.

    With a sender, the rank's operation `number` takes the message that is the sender's operation `message`. Without a
    sender, the rank leaves its call early. A choice means the same in every run in which the same has happened before.
    """

    rank: int
    number: int
    sender: int | None = None
    message: int = 0


@dataclass
class RunOutcome:
    """The outcome of a run. kind: "" if every rank reached its end, else the kind of failure, which `text` describes.

    stuck: who waits for whom if no rank leaves a call early; empty if nobody does. left: what kind of call the ranks
    left early, "send" or "collective".
    """

    kind: str = ""
    text: str = ""
    stuck: str = ""
    left: str = "send"
    stuck_picture: Picture | None = None
    picture: Picture | None = None
    results: list = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    order: frozenset[Choice] = frozenset()  # which messages the receives from any source took


class Schedule:
    """A run of `program` on `size` ranks.

    poison: whether to put other values into the array of an Irecv until the rank has waited for it, so that reading the
    array too early changes the results.
    """

    def __init__(self, program: Callable, size: int, poison: bool = False):
        self.size = size
        self.poison = poison
        self.baton = threading.Semaphore(0)
        self._ticks = itertools.count(1)
        self.operations: list[Operation] = []
        self.pending: list[Operation] = []  # unmatched sends and receives, in the order of the calls
        self.collectives: list[list[Operation]] = []  # the ranks' parts in the first collective, second, ...
        self.options: list[Choice] = []
        self.over = False
        self.matched = 0  # how many messages and collectives have matched so far
        self.outcome = RunOutcome()
        self.ranks = [RankThread(number, program, self) for number in range(size)]

    def __enter__(self) -> "Schedule":
        for rank in self.ranks:
            rank.start()
        return self

    def __exit__(self, *_) -> None:
        for rank in self.ranks:
            rank.stop()

    def advance(self) -> list[Choice]:
        """Run up to the next choice and return the options; an empty list once the run is over.

        Raises the program's NotImplementedError, and the fake MPI's InputError for a call that it does not know.
        """
        while not self.outcome.kind:
            self._run_ranks()
            if self.outcome.kind or self._settle():
                continue
            matches = self._matches()
            early = self._early()
            if matches:
                self.options = matches + early
                return self.options
            if all(rank.ended for rank in self.ranks):
                break
            who_waits = report.who_waits(self.ranks, self.pending)
            if not self.outcome.stuck:
                self.outcome.stuck = who_waits
                self.outcome.stuck_picture = report.picture(self.ranks)
            if not early:
                self.fail("deadlock", who_waits)
            for choice in early:
                self.take(choice)
        self._end()
        return []

    def take(self, choice: Choice) -> None:
        """Carry out a choice."""
        if choice.sender is None:
            call = self.ranks[choice.rank].waiting
            for operation in call.operations if call else []:
                if not operation.done:
                    self._leave(operation)
        else:
            self._match(self._operation(choice.rank, choice.number), self._operation(choice.sender, choice.message))

    def fail(self, kind: str, text: str) -> None:
        """Record a failure of the run. Only the first one counts."""
        if not self.outcome.kind:
            self.outcome.kind = kind
            self.outcome.text = text

    def start(self, operation: Operation) -> bool:
        """Take in an operation that a rank has called; return whether the rank may go on."""
        self.operations.append(operation)
        operation.started = operation.moment = next(self._ticks)
        if operation.kind not in ENDS:
            before = sum(each.rank == operation.rank for group in self.collectives for each in group)
            if before == len(self.collectives):
                self.collectives.append([])
            operation.group = self.collectives[before]
            operation.group.append(operation)
            if different := matching.wrong_collective(operation.group[0], operation, self.size):
                self.fail("mismatch", different)
        elif operation.peer == MPI.PROC_NULL:
            operation.done = True
        else:
            self.pending.append(operation)
        if self.poison and operation.kind == "recv" and operation.buffer is not None:
            operation.buffer.view(np.uint8)[:] ^= 0xFF
            operation.before = operation.buffer.tobytes()
        return not self.outcome.kind

    def deliver(self, operation: Operation) -> bool:
        """Give a rank what it has waited for; return whether the rank may go on."""
        buffer = operation.buffer
        result = operation.result
        if buffer is not None and operation.before != buffer.tobytes():
            name = operation.name
            line = operation.line.number
            self.fail(
                "reuse", f"rank {operation.rank} writes into the array of its {name} in line {line} before the Wait."
            )
        elif self.poison and buffer is not None and operation.kind == "recv":
            buffer.view(np.uint8)[:] ^= 0xFF
        operation.buffer = None
        if operation.into is not None and isinstance(result, np.ndarray):
            operation.into[: result.size] = result
            operation.result = None
        return not self.outcome.kind

    def _run_ranks(self) -> None:
        """Run each rank until all of them wait or have ended."""
        while ready := [rank for rank in self.ranks if rank.ready]:
            for rank in ready:
                rank.resume()
                if isinstance(rank.error, NotImplementedError | WorkshopError):
                    raise rank.error
                if rank.error is not None:
                    error = f"{type(rank.error).__name__}: {rank.error}"
                    self.fail("error", f"rank {rank.number} raises {error}")
                if self.outcome.kind:
                    return

    def _settle(self) -> bool:
        """Carry out one thing that can happen in only one way; return whether there was one."""
        named = (each for each in self.pending if each.kind != "send" and each.peer != MPI.ANY_SOURCE)
        for recv in named:
            if sends := self._sends_for(recv):
                self._match(recv, sends[0])
                return True
        for group in self.collectives:
            if len(group) == self.size and not all(part.done for part in group):
                self._finish(group)
                return True
        return False

    def _sends_for(self, recv: Operation) -> list[Operation]:
        sends = [each for each in self.pending if each.kind == "send"]
        return [send for send in sends if matching.may_match(recv, send, self.pending)]

    def _matches(self) -> list[Choice]:
        """Return a choice for each message that a receive or a probe from any source may take."""
        recvs = [each for each in self.pending if each.kind != "send"]
        return [Choice(recv.rank, recv.number, s.rank, s.number) for recv in recvs for s in self._sends_for(recv)]

    def _early(self) -> list[Choice]:
        """Return a choice for each rank that may leave its call early."""
        calls = [rank.waiting for rank in self.ranks if rank.waiting is not None]
        return [
            Choice(call.operations[-1].rank, call.operations[-1].number)
            for call in calls
            if all(operation.done or matching.may_leave(operation) for operation in call.operations)
        ]

    def _operation(self, rank: int, number: int) -> Operation:
        return next(each for each in self.operations if (each.rank, each.number) == (rank, number))

    def _match(self, recv: Operation, send: Operation) -> None:
        self.matched += 1
        recv.done = True
        recv.partner = send
        recv.moment = next(self._ticks)
        self.pending.remove(recv)
        if recv.kind == "probe":
            return
        self.pending.remove(send)
        send.done = True
        send.partner = recv
        send.moment = send.moment if send.left else recv.moment
        if wrong := matching.wrong_message(recv, send):
            self.fail("message", wrong)
        else:
            recv.result = send.value

    def _finish(self, group: list[Operation]) -> None:
        self.matched += 1
        moment = next(self._ticks)
        for part in group:
            if not part.left:
                self._give(part)
                part.moment = moment
            part.done = True

    def _leave(self, operation: Operation) -> None:
        operation.left = True
        operation.moment = next(self._ticks)
        if operation.kind != "send":
            self.outcome.left = "collective"
        if operation.kind in matching.ROOT_GIVES:
            self._give(operation)

    def _give(self, part: Operation) -> None:
        """Store what a rank gets from a collective as the result of its part."""
        try:
            part.result = matching.combine(part, self.size)
        except (ValueError, TypeError, IndexError) as error:
            self.fail("mismatch", f"{part.name} in line {part.line.number} on rank {part.rank}: {error}.")
            return
        if wrong := matching.wrong_room(part):
            self.fail("mismatch", wrong)

    def _end(self) -> None:
        """Complete the outcome once the run is over."""
        self.over = True
        self.outcome.picture = report.picture(self.ranks)
        self.outcome.results = [rank.value for rank in self.ranks]
        self.outcome.printed = [rank.printed for rank in self.ranks]
        if not self.outcome.kind:
            self.outcome.notes = report.left_over(self.operations, self.ranks)
