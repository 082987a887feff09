"""One run of a program in the deadlock explorer of 01_mpi_basics: all ranks in this process, in an order of its choice.

A rank runs until it has to wait. Once all ranks wait, everything that can happen in only one way happens: a receive
that names its source gets its message, and a collective that all ranks have called ends. What remains are choices:
which message a receive from any source takes.
"""

import itertools
import threading
from collections.abc import Callable

from mpi4py import MPI

from workshop_lib.errors import WorkshopError
from workshop_lib.lessons.mpi_basics.operations import Operation, may_match
from workshop_lib.lessons.mpi_basics.rank_thread import RankCall, RankThread

# The keys of a receive and of the send whose message it takes.
Choice = tuple[tuple[int, int], tuple[int, int]]


class Schedule:
    """A run of `program` on `size` ranks.

    buffers: whether a send returns at once, unless it is synchronous; else it waits for its receiver. kind: "" if every
    rank reaches its end, else the kind of failure, which `text` describes. taken: the choices so far.
    """

    def __init__(self, program: Callable, size: int, buffers: bool):
        self.baton = threading.Semaphore(0)  # released by the rank that stops running
        self.buffers = buffers
        self.kind = self.text = ""
        self.taken: list[Choice] = []
        self.ranks = [RankThread(number, size, program, self) for number in range(size)]
        self._pending: list[Operation] = []  # unmatched sends and receives, in the order of the calls
        self._together: list[Operation] = []  # the ranks' parts in the collective that some ranks have called
        self._ticks = itertools.count(1)
        self._operations: dict[tuple[int, int], Operation] = {}

    def __enter__(self) -> "Schedule":
        for rank in self.ranks:
            rank.start()
        return self

    def __exit__(self, *_) -> None:
        for rank in self.ranks:
            rank.stop()

    @property
    def messages(self) -> list[tuple[RankCall, RankCall]]:
        """The call that sent each message, and the call that received it."""
        place: dict[Operation, RankCall] = {}
        for call in itertools.chain.from_iterable(rank.calls for rank in self.ranks):
            place = dict.fromkeys(call.operations, call) | place
        return [(place[each.partner], place[each]) for each in place if each.kind == "recv" and each.partner]

    @property
    def never_waited_for(self) -> list[str]:
        """A sentence for each request that no rank has waited for."""
        calls = [call for rank in self.ranks for call in rank.calls if not call.at_once]
        waited_for = {operation for call in calls for operation in call.operations}
        left_over = [operation for operation in self._operations.values() if operation not in waited_for]
        return [f"rank {o.rank}'s {o.name} in line {o.line.number} is never waited for." for o in left_over]

    def advance(self) -> list[Choice]:
        """Run up to the next choice and return the options; an empty list once the run is over.

        Raises the program's NotImplementedError, and the fake MPI's InputError for a call that it does not know.
        """
        while not self.kind:
            self._run_ranks()
            if self.kind or self._settle():
                continue
            if options := [(recv.key, send.key) for recv in self._receives() for send in self._sends_for(recv)]:
                return options
            if all(rank.ended for rank in self.ranks):
                break
            self.fail("deadlock", "; ".join(self._why_it_waits(rank) for rank in self.ranks if rank.open))
        return []

    def take(self, choice: Choice) -> None:
        """Carry out a choice."""
        self.taken.append(choice)
        recv, send = choice
        self._match(self._operations[recv], self._operations[send])

    def fail(self, kind: str, text: str) -> None:
        """Record a failure of the run. Only the first one counts."""
        if not self.kind:
            self.kind = kind
            self.text = text

    def start(self, operation: Operation) -> None:
        """Take in an operation that a rank has called."""
        operation.number = sum(rank == operation.rank for rank, _ in self._operations)
        self._operations[operation.key] = operation
        operation.started = operation.moment = next(self._ticks)
        if operation.kind == "collective":
            self._together.append(operation)
            first = self._together[0]
            one, other = first.name + first.detail, operation.name + operation.detail
            if one != other:
                calls = f"rank {first.rank} calls {one} in line {first.line.number} where rank {operation.rank} calls"
                self.fail("mismatch", f"{calls} {other} in line {operation.line.number}")
        elif operation.peer == MPI.PROC_NULL:
            operation.done = True
        else:
            synchronous = "ss" in operation.name.lower()
            operation.buffered = self.buffers and operation.kind == "send" and not synchronous
            self._pending.append(operation)

    def _run_ranks(self) -> None:
        """Run each rank until all of them wait or have ended."""
        while ready := [rank for rank in self.ranks if not (rank.ended or rank.open)]:
            for rank in ready:
                rank.resume()
                if isinstance(rank.error, NotImplementedError | WorkshopError):
                    raise rank.error
                if rank.error is not None:
                    self.fail("error", f"rank {rank.number} raises {type(rank.error).__name__}: {rank.error}")
                if self.kind:
                    return

    def _settle(self) -> bool:
        """Carry out one thing that can happen in only one way; return whether there was one."""
        for recv in self._receives():
            sends = self._sends_for(recv)
            if sends and recv.peer != MPI.ANY_SOURCE:
                self._match(recv, sends[0])
                return True
        if len(self._together) < len(self.ranks):
            return False
        moment = next(self._ticks)
        for part in self._together:
            part.result = tuple(each.data for each in sorted(self._together, key=lambda each: each.rank))
            part.moment = moment
            part.done = True
        self._together = []
        return True

    def _receives(self) -> list[Operation]:
        return [each for each in self._pending if each.kind != "send"]

    def _sends_for(self, recv: Operation) -> list[Operation]:
        sends = [each for each in self._pending if each.kind == "send"]
        return [send for send in sends if may_match(recv, send, self._pending)]

    def _match(self, recv: Operation, send: Operation) -> None:
        recv.done = True
        recv.partner = send
        recv.moment = next(self._ticks)
        self._pending.remove(recv)
        if recv.kind == "recv":
            self._pending.remove(send)
            send.done = True
            # A rank's last call is drawn where its message arrives, even if MPI has buffered it.
            if not send.buffered or send in self.ranks[send.rank].calls[-1].operations:
                send.moment = recv.moment

    # What a rank waits for.

    def waits_for(self, operation: Operation) -> str:
        """Return what has to happen before an operation is done."""
        missing = self._missing(operation)
        listed = " and ".join(map(str, missing))
        who = f"ranks {listed}" if len(missing) > 1 else f"rank {listed}" if missing else "any rank"
        if operation.kind == "send":
            return f"{who} to receive"
        if operation.kind == "collective":
            return f"{who} to call {operation.name}"
        return f"a message from {who}" + ("" if operation.tag in (MPI.ANY_TAG, 0) else f" with tag {operation.tag}")

    def _missing(self, operation: Operation) -> list[int]:
        """Return the ranks that an operation waits for; none if any rank will do."""
        if operation.kind == "collective":
            there = [part.rank for part in self._together]
            return [rank.number for rank in self.ranks if rank.number not in there]
        return [] if operation.peer == MPI.ANY_SOURCE else [operation.peer]

    def _why_it_waits(self, rank: RankThread) -> str:
        """Return where a rank waits, for what, and why that may never happen."""
        operation = rank.open[0]
        line = rank.calls[-1].line
        reasons = [f"rank {other} has ended" for other in self._missing(operation) if self.ranks[other].ended]
        there = [each for each in self._pending if each.kind == "send" and each.peer == rank.number]
        if operation.kind in ("recv", "probe") and there:
            tag = f" with tag {there[0].tag}" if operation.peer in (MPI.ANY_SOURCE, there[0].rank) else ""
            reasons.append(f"there is a message from rank {there[0].rank}{tag}")
        clause = f"rank {rank.number} waits in line {line.number}, `{line.text}`, for {self.waits_for(operation)}"
        return clause + (f" ({'; '.join(reasons)})" if reasons else "")
