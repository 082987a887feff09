"""A communicator that counts: what an exercise's collective sends, and in how many rounds.

It has MPI's point-to-point calls and nothing else, so that a collective must be built from them. Its
sends are synchronous: they end only when the receiver has begun to receive. MPI sends large messages
that way, so code that only works because small ones are buffered fails here at once.
"""

import pickle
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI


@dataclass(frozen=True)
class Event:
    """One end of a message, in the order in which a rank called for it."""

    kind: str  # "send", "isend", or "recv" where a receive ended; a sendrecv is send and recv
    peer: int
    tag: int
    nbytes: int = 0
    since: int = 0  # of a receive: how many events came between its start and its end


class CountingComm:
    """Counts the messages that this rank sends over `comm`. Upper-case calls take NumPy arrays, lower-case
    ones any object, as in mpi4py. Raises AttributeError, saying what there is, for any other call.
    """

    CALLS = "Send, Isend, Recv, Irecv, Sendrecv, send, isend, recv, irecv, sendrecv"

    def __init__(self, comm: MPI.Comm):
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size
        self._log: list[Event] = []
        self._under_way: list[tuple] = []  # (request, source, tag, events before it) of Irecv and irecv

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def __getattr__(self, name: str):
        raise AttributeError(f"this communicator has no {name}: build it from {self.CALLS}, rank and size")

    @property
    def log(self) -> list[Event]:
        """What this rank has called, each call after those that it waited for."""
        under_way, self._under_way = self._under_way, []
        for request, source, tag, before in under_way:
            if request == MPI.REQUEST_NULL:  # what a request becomes once it has been waited for
                self._log.append(Event("recv", source, tag, since=len(self._log) - before))
            else:
                self._under_way.append((request, source, tag, before))
        return self._log

    @property
    def messages_sent(self) -> int:
        return sum(event.kind != "recv" for event in self.log)

    @property
    def bytes_sent(self) -> int:
        return sum(event.nbytes for event in self.log)

    def Send(self, buf, dest: int, tag: int = 0) -> None:
        self._sends("send", dest, tag, _nbytes(buf))
        self._comm.Ssend(buf, dest, tag)

    def Isend(self, buf, dest: int, tag: int = 0) -> MPI.Request:
        self._sends("isend", dest, tag, _nbytes(buf))
        return self._comm.Issend(buf, dest, tag)

    def Recv(self, buf, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status=None) -> None:
        status = status or MPI.Status()
        self._comm.Recv(buf, source, tag, status)
        self._receives(status)

    def Irecv(self, buf, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        return self._starts(self._comm.Irecv(buf, source, tag), source, tag)

    def Sendrecv(
        self, sendbuf, dest, sendtag=0, recvbuf=None, source=MPI.ANY_SOURCE, recvtag=MPI.ANY_TAG, status=None
    ) -> None:
        self._sends("send", dest, sendtag, _nbytes(sendbuf))
        status = status or MPI.Status()
        self._comm.Sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        self._receives(status, since=1)

    def send(self, obj, dest: int, tag: int = 0) -> None:
        self._sends("send", dest, tag, len(pickle.dumps(obj)))
        self._comm.ssend(obj, dest, tag)

    def isend(self, obj, dest: int, tag: int = 0) -> MPI.Request:
        self._sends("isend", dest, tag, len(pickle.dumps(obj)))
        return self._comm.issend(obj, dest, tag)

    def recv(self, buf=None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status=None):
        status = status or MPI.Status()
        obj = self._comm.recv(buf, source, tag, status)
        self._receives(status)
        return obj

    def irecv(self, buf=None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        return self._starts(self._comm.irecv(buf, source, tag), source, tag)

    def sendrecv(self, sendobj, dest, sendtag=0, recvbuf=None, source=MPI.ANY_SOURCE, recvtag=MPI.ANY_TAG, status=None):
        self._sends("send", dest, sendtag, len(pickle.dumps(sendobj)))
        status = status or MPI.Status()
        obj = self._comm.sendrecv(sendobj, dest, sendtag, recvbuf, source, recvtag, status)
        self._receives(status, since=1)
        return obj

    def _sends(self, kind: str, dest: int, tag: int, nbytes: int) -> None:
        self.log.append(Event(kind, dest, tag, nbytes))

    # All sends are synchronous here already.
    Ssend, Issend, ssend, issend = Send, Isend, send, isend

    def _receives(self, status: MPI.Status, since: int = 0) -> None:
        self.log.append(Event("recv", status.Get_source(), status.Get_tag(), since=since))

    def _starts(self, request: MPI.Request, source: int, tag: int) -> MPI.Request:
        before = len(self.log)
        self._under_way.append((request, source, tag, before))
        return request


def _nbytes(buf) -> int:
    """Bytes of an array, or of the array in mpi4py's [array, datatype]."""
    return np.asarray(buf[0] if isinstance(buf, list | tuple) else buf).nbytes


def rounds(logs: list[list[Event]]) -> int:
    """Rounds in which the logged messages of all ranks (by rank) can be exchanged.

    In one round every rank can send one message and receive one, at the same time: the model in which
    collectives are compared (Thakur, Rabenseifner and Gropp 2005, section 3). A call starts after the
    blocking calls before it; a message is received in the round it is sent in, at the earliest.
    Raises ValueError when a receive in the logs has no send.
    """
    clocks = [_Clock() for _ in logs]
    coming = defaultdict(list)  # by receiver: (round, sender, tag) of the messages not received yet
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
                        break  # its send has not been placed yet
                    coming[rank].remove(min(fitting))
                    clocks[rank].receive(min(fitting)[0], event.since)
                else:
                    in_round = clocks[rank].send(blocks=event.kind == "send")
                    coming[event.peer].append((in_round, rank, event.tag))
                at[rank] += 1
                moved = True
    if any(position < len(log) for position, log in zip(at, logs, strict=True)):
        raise ValueError("a logged receive has no matching send")
    return max(max(clock.now, clock.last_send) for clock in clocks)


class _Clock:
    """The round one rank has come to."""

    def __init__(self):
        self.now = self.last_send = 0
        self.before = []  # `now` at each event
        self.receives_in = set()

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
