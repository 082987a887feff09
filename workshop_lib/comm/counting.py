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

    kind: str  # "send", "isend", "recv"; a sendrecv is both of them in one call
    peer: int
    tag: int
    nbytes: int = 0
    same_call: bool = False  # the receiving half of a sendrecv


class CountingComm:
    """Counts the messages that this rank sends over `comm`. Upper-case calls take NumPy arrays, lower-case
    ones any object, as in mpi4py. Raises AttributeError, saying what there is, for any other call.
    """

    CALLS = ("Send", "Isend", "Recv", "Sendrecv", "send", "isend", "recv", "sendrecv")

    def __init__(self, comm: MPI.Comm):
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.log: list[Event] = []

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def __getattr__(self, name: str):
        raise AttributeError(
            f"this communicator has no {name}: build it from {', '.join(self.CALLS)}, rank and size"
        )

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

    def Sendrecv(
        self, sendbuf, dest, sendtag=0, recvbuf=None, source=MPI.ANY_SOURCE, recvtag=MPI.ANY_TAG, status=None
    ) -> None:
        self._sends("send", dest, sendtag, _nbytes(sendbuf))
        status = status or MPI.Status()
        self._comm.Sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        self._receives(status, same_call=True)

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

    def sendrecv(
        self, sendobj, dest, sendtag=0, recvbuf=None, source=MPI.ANY_SOURCE, recvtag=MPI.ANY_TAG, status=None
    ):
        self._sends("send", dest, sendtag, len(pickle.dumps(sendobj)))
        status = status or MPI.Status()
        obj = self._comm.sendrecv(sendobj, dest, sendtag, recvbuf, source, recvtag, status)
        self._receives(status, same_call=True)
        return obj

    def _sends(self, kind: str, dest: int, tag: int, nbytes: int) -> None:
        self.log.append(Event(kind, dest, tag, nbytes))

    def _receives(self, status: MPI.Status, same_call: bool = False) -> None:
        self.log.append(Event("recv", status.Get_source(), status.Get_tag(), same_call=same_call))


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
    sent_in = defaultdict(list)  # (sender, receiver, tag): the rounds of these messages, in order
    taken = defaultdict(int)
    at = [0] * len(logs)
    moved = True
    while moved:
        moved = False
        for rank, log in enumerate(logs):
            while at[rank] < len(log):
                event = log[at[rank]]
                if event.kind == "recv":
                    message = (event.peer, rank, event.tag)
                    if taken[message] == len(sent_in[message]):
                        break  # its send has not been placed yet
                    clocks[rank].receive(sent_in[message][taken[message]], event.same_call)
                    taken[message] += 1
                else:
                    in_round = clocks[rank].send(blocks=event.kind == "send")
                    sent_in[rank, event.peer, event.tag].append(in_round)
                at[rank] += 1
                moved = True
    if any(position < len(log) for position, log in zip(at, logs, strict=True)):
        raise ValueError("a logged receive has no matching send")
    return max(max(clock.now, clock.last_send) for clock in clocks)


class _Clock:
    """The round one rank has come to."""

    def __init__(self):
        self.now = self.before = self.last_send = self.last_receive = 0

    def send(self, blocks: bool) -> int:
        self.before = self.now
        self.last_send = max(self.now, self.last_send) + 1
        if blocks:
            self.now = self.last_send
        return self.last_send

    def receive(self, sent_in: int, same_call: bool) -> None:
        start = self.before if same_call else self.now
        self.last_receive = max(sent_in, max(start, self.last_receive) + 1)
        self.now = max(self.now, self.last_receive)
