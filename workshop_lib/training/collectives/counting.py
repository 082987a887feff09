"""A communicator that counts what a collective sends, and in how many rounds.

01_mpi_basics checks its exercises with it, and later notebooks use it to count what their code sends. It has MPI's
point-to-point calls and nothing else, so a collective must be built from them. Its sends are synchronous: they end only
when the receiver has begun to receive. MPI sends large messages this way, so code that works only because small
messages are buffered fails here at once.

CountedCollectives builds MPI's collectives from these calls, for a PyTorch process group. So it can also count what DDP
and FSDP send.
"""

import contextlib
import functools
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from workshop_lib.errors import InputError
from workshop_lib.training.collectives import ring


@dataclass(frozen=True)
class Event:
    """One end of a message, as an entry in a rank's log."""

    kind: str  # "send", "isend", or "recv" for the end of a receive; a Sendrecv logs a "send" and a "recv"
    peer: int
    tag: int
    nbytes: int = 0
    since: int = 0  # for a receive: how many events came between its start and its end


class Receive(NamedTuple):
    """An Irecv or irecv that nobody has waited for yet; before: how many events preceded it."""

    request: MPI.Request
    source: int
    tag: int
    before: int


class CountingComm:
    """A communicator that counts the messages this rank sends over `comm`.

    Upper-case calls take NumPy arrays and lower-case calls any object, with the same arguments as in mpi4py. Any other
    call raises an AttributeError that lists the calls that exist.
    """

    def __init__(self, comm: MPI.Comm):
        self._comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self._log: list[Event] = []
        self._under_way: list[Receive] = []

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def __getattr__(self, name: str):
        calls = "Send, Isend, Recv, Irecv, Sendrecv, send, isend, recv, irecv, sendrecv"
        raise AttributeError(f"this communicator has no {name}: build it from {calls}, rank and size")

    def Send(self, buf, dest: int, tag: int = 0) -> None:
        self._log_send("send", dest, tag, _nbytes(buf))
        self._comm.Ssend(buf, dest, tag)

    def Isend(self, buf, dest: int, tag: int = 0) -> MPI.Request:
        self._log_send("isend", dest, tag, _nbytes(buf))
        return self._comm.Issend(buf, dest, tag)

    def Recv(self, buf, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None) -> None:
        status = status or MPI.Status()
        self._comm.Recv(buf, source, tag, status)
        self._log_receive(status)

    def Probe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None) -> None:
        self._comm.Probe(source, tag, status)

    def Irecv(self, buf, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        return self._begin_receive(self._comm.Irecv, buf, source, tag)

    def Sendrecv(
        self,
        sendbuf,
        dest: int,
        sendtag: int = 0,
        recvbuf=None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        status = status or MPI.Status()
        self._log_send("send", dest, sendtag, _nbytes(sendbuf))
        self._comm.Sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        self._log_receive(status, since=1)

    def send(self, obj, dest: int, tag: int = 0) -> None:
        self._log_send("send", dest, tag, len(pickle.dumps(obj)))
        self._comm.ssend(obj, dest, tag)

    def isend(self, obj, dest: int, tag: int = 0) -> MPI.Request:
        self._log_send("isend", dest, tag, len(pickle.dumps(obj)))
        return self._comm.issend(obj, dest, tag)

    def recv(self, buf=None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None):
        status = status or MPI.Status()
        obj = self._comm.recv(buf, source, tag, status)
        self._log_receive(status)
        return obj

    def irecv(self, buf=None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        return self._begin_receive(self._comm.irecv, buf, source, tag)

    def sendrecv(
        self,
        sendobj,
        dest: int,
        sendtag: int = 0,
        recvbuf=None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ):
        status = status or MPI.Status()
        self._log_send("send", dest, sendtag, len(pickle.dumps(sendobj)))
        obj = self._comm.sendrecv(sendobj, dest, sendtag, recvbuf, source, recvtag, status)
        self._log_receive(status, since=1)
        return obj

    # All sends are synchronous anyway.
    Ssend = Send
    Issend = Isend
    ssend = send
    issend = isend
    probe = Probe

    def _log_send(self, kind: str, dest: int, tag: int, nbytes: int) -> None:
        self.log.append(Event(kind, dest, tag, nbytes))

    def _begin_receive(self, receive: Callable[..., MPI.Request], buf, source: int, tag: int) -> MPI.Request:
        before = len(self.log)
        request = receive(buf, source, tag)
        self._under_way.append(Receive(request, source, tag, before))
        return request

    def _log_receive(self, status: MPI.Status, since: int = 0) -> None:
        self.log.append(Event("recv", status.Get_source(), status.Get_tag(), since=since))

    @property
    def log(self) -> list[Event]:
        """The events of this rank so far. Each event comes after all events that it waited for."""
        under_way = self._under_way
        self._under_way = []
        for receive in under_way:
            if receive.request == MPI.REQUEST_NULL:  # a request is null once it has been waited for
                since = len(self._log) - receive.before
                self._log.append(Event("recv", receive.source, receive.tag, since=since))
            else:
                self._under_way.append(receive)
        return self._log

    @property
    def messages_sent(self) -> int:
        return sum(event.kind != "recv" for event in self.log)

    @property
    def bytes_sent(self) -> int:
        return sum(event.nbytes for event in self.log)


class CountedCollectives:
    """The nonblocking collectives of mpi4py that torch_mpi.py calls, each built as a ring of counted messages.

    None sends more bytes than the best algorithm does, but a broadcast takes one round per rank. The collectives block,
    and return a request that is done. `asked_for` lists their names with the bytes of their whole array, and `messages`
    is the CountingComm that they use. Raises InputError for reductions other than a sum.
    """

    def __init__(self, comm: MPI.Comm):
        self.rank = comm.rank
        self.size = comm.size
        self._comm = comm
        self.messages = CountingComm(comm)
        self.asked_for: list[tuple[str, int]] = []

    def Iallreduce(self, in_place, array: np.ndarray, operation: MPI.Op) -> MPI.Request:
        self._begin("allreduce", array, operation)
        ring.allreduce(self.messages, array)
        return MPI.REQUEST_NULL

    def Ireduce_scatter_block(self, array: np.ndarray, part: np.ndarray, operation: MPI.Op) -> MPI.Request:
        self._begin("reduce-scatter", array, operation)
        part[:] = ring.reduce_scatter(self.messages, array)
        return MPI.REQUEST_NULL

    def Iallgather(self, part: np.ndarray, array: np.ndarray) -> MPI.Request:
        self._begin("allgather", array)
        array[ring.part(len(array), self.rank, self.size)] = part
        ring.allgather(self.messages, array)
        return MPI.REQUEST_NULL

    def Ibcast(self, array: np.ndarray, root: int) -> MPI.Request:
        self._begin("broadcast", array)
        right = (self.rank + 1) % self.size
        if self.rank != root:
            self.messages.Recv(array, (self.rank - 1) % self.size)
        if right != root:
            self.messages.Send(array, right)
        return MPI.REQUEST_NULL

    def Ialltoallv(self, going: list, coming: list) -> MPI.Request:
        self._begin("all-to-all", going[0])
        outgoing = _parts_of(going)
        incoming = _parts_of(coming)
        incoming[self.rank][:] = outgoing[self.rank]
        for distance in range(1, self.size):
            dest = (self.rank + distance) % self.size
            source = (self.rank - distance) % self.size
            self.messages.Sendrecv(outgoing[dest], dest, recvbuf=incoming[source], source=source)
        return MPI.REQUEST_NULL

    def Isend(self, array: np.ndarray, dest: int, tag: int) -> MPI.Request:
        self._begin("send", array)
        return self.messages.Isend(array, dest, tag)

    def Irecv(self, array: np.ndarray, source: int, tag: int) -> MPI.Request:
        return self.messages.Irecv(array, source, tag)

    def Ibarrier(self) -> MPI.Request:
        return self._comm.Ibarrier()  # a barrier sends no data

    def _begin(self, name: str, array: np.ndarray, operation: MPI.Op = MPI.SUM) -> None:
        if operation != MPI.SUM:
            raise InputError("only sums can be counted, and means: use ReduceOp.SUM or AVG")
        self.asked_for.append((name, _nbytes(array)))


@contextlib.contextmanager
def counted(group) -> Iterator[CountedCollectives]:
    """Count what this rank sends in `group`, a process group over MPI (torch_mpi.py). All its ranks must do so."""
    plain = group.comm
    group.comm = CountedCollectives(group.comm)
    try:
        yield group.comm
    finally:
        group.comm = plain


def _parts_of(message: list) -> list[np.ndarray]:
    """Each rank's part of mpi4py's [array, (counts, starts), datatype], in the array's memory."""
    array, (counts, starts), _ = message
    return [array[start : start + count] for count, start in zip(counts, starts, strict=True)]


def _nbytes(buf) -> int:
    """Return the bytes of an array, or of the array in mpi4py's [array, datatype]."""
    return np.asarray(buf[0] if isinstance(buf, list | tuple) else buf).nbytes


def rounds(logs: list[list[Event]]) -> int:
    """Return the number of rounds in which the logged messages can be exchanged. logs: one log per rank, by rank.

    In one round, every rank can send one message and receive one at the same time. Collectives are usually compared in
    this model (Thakur, Rabenseifner and Gropp 2005, section 3). A call starts after the blocking calls before it, and a
    message is received, at the earliest, in the round in which it is sent. Raises InputError when a receive in the logs
    has no matching send.
    """
    clocks = [_Clock() for _ in logs]
    # For each receiver, (round, sender, tag) of the messages that it has not received yet.
    coming: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    at = [0] * len(logs)
    moved = True
    while moved:
        moved = False
        for rank, log in enumerate(logs):
            while at[rank] < len(log):
                event = log[at[rank]]
                if event.kind == "recv":
                    fitting = [
                        (in_round, sender, tag)
                        for in_round, sender, tag in coming[rank]
                        if event.peer in (sender, MPI.ANY_SOURCE) and event.tag in (tag, MPI.ANY_TAG)
                    ]
                    if not fitting:
                        break  # the matching send has not been placed yet
                    coming[rank].remove(min(fitting))
                    clocks[rank].receive(min(fitting)[0], event.since)
                else:
                    in_round = clocks[rank].send(blocks=event.kind == "send")
                    coming[event.peer].append((in_round, rank, event.tag))
                at[rank] += 1
                moved = True
    if any(position < len(log) for position, log in zip(at, logs, strict=True)):
        raise InputError("a logged receive has no matching send")
    return max(max(clock.now, clock.last_send) for clock in clocks)


class _Clock:
    """The round that one rank has reached."""

    def __init__(self):
        self.now = self.last_send = 0
        self.before: list[int] = []  # the value of `now` before each event
        self.receives_in: set[int] = set()

    def send(self, blocks: bool) -> int:
        self.before.append(self.now)
        self.last_send = max(self.now, self.last_send) + 1
        if blocks:
            self.now = self.last_send
        return self.last_send

    def receive(self, sent_in: int, since: int) -> None:
        self.before.append(self.now)
        round_ = max(sent_in, self.before[-1 - since] + 1)
        while round_ in self.receives_in:
            round_ += 1
        self.receives_in.add(round_)
        self.now = max(self.now, round_)


class GivenBytes:
    """A wrapper of `comm` that adds up in `nbytes` how many bytes this rank passes to its calls.

    Of each call, the largest array counts. A collective may send more than it is given: an allreduce of n bytes sends
    up to 2 n.
    """

    def __init__(self, comm: MPI.Comm):
        self._comm = comm
        self.nbytes = 0

    def __getattr__(self, name: str):
        value = getattr(self._comm, name)
        if not callable(value):
            return value

        @functools.wraps(value)
        def call(*args, **kwargs):
            given = [each for each in (*args, *kwargs.values()) if isinstance(each, np.ndarray)]
            self.nbytes += max((array.nbytes for array in given), default=0)
            return value(*args, **kwargs)

        return call
