"""A fake communicator inside one process, in which the deadlock explorer of 01_mpi_basics runs programs.

It has mpi4py's calls, but passes each of them to the thread of its rank, which waits until the call may end.
"""

import functools
import pickle
import threading
from typing import Any

import numpy as np
from mpi4py import MPI

from workshop_lib.errors import InputError
from workshop_lib.lessons.mpi_basics.operations import Operation

# The explorer never calls MPI itself, because a notebook has not initialized it.
OPERATIONS = {"SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum}
REAL_WORLD = MPI.COMM_WORLD


class KnownCalls:
    """A class that answers any call it doesn't have with a sentence that lists those it has."""

    def __getattr__(self, name: str):
        known = sorted(call for call in vars(type(self)) if not call.startswith(("_", "Get_")))
        raise InputError(f"the explorer knows no {name}, only {', '.join(known)}: run this program on real ranks.")


class FakeStatus(KnownCalls):
    """The status that a receive fills in, as in mpi4py."""

    source = MPI.ANY_SOURCE
    tag = MPI.ANY_TAG

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag


class Request(KnownCalls):
    """The request that a nonblocking call returns, as in mpi4py."""

    def __init__(self, comm: "FakeComm", operation: Operation, into: np.ndarray | None):
        self._comm = comm
        self._operation = operation
        self._into = into

    def Wait(self, status: FakeStatus | None = None) -> Any:
        self._comm._thread.wait("Wait", self._operation)
        return self._comm._received(self._operation, self._into, status)

    wait = Wait

    @staticmethod
    def Waitall(requests: list["Request"]) -> None:
        for request in requests:
            request.Wait()


class FakeComm(KnownCalls):
    """One rank's communicator. Its calls take the same arguments as in mpi4py.

    Upper-case calls take arrays, lower-case calls any object. Raises InputError for any other call.
    """

    def __init__(self, rank: int, size: int, thread):
        self.rank = rank
        self.size = size
        self._thread = thread

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    # Messages. The calls that send are below, because all of them have the same arguments.

    def Recv(self, buf, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        self._block("Recv", source, tag, status, buf)

    def Irecv(self, buf, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG):
        return self._start(self._receive("Irecv", source, tag), flat("Irecv", buf))

    def recv(self, buf=None, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        return self._block("recv", source, tag, status)

    def irecv(self, buf=None, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG):
        return self._start(self._receive("irecv", source, tag))

    def Sendrecv(self, sendbuf, dest, sendtag=0, recvbuf=None, source=MPI.ANY_SOURCE, recvtag=MPI.ANY_TAG, status=None):
        self._block("Sendrecv", source, recvtag, status, recvbuf, self._send("Sendrecv", sendbuf, dest, sendtag))

    def sendrecv(self, sendobj, dest, sendtag=0, recvbuf=None, source=MPI.ANY_SOURCE, recvtag=MPI.ANY_TAG, status=None):
        send = self._send("sendrecv", sendobj, dest, sendtag)
        return self._block("sendrecv", source, recvtag, status, None, send)

    def Probe(self, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        self._block("Probe", source, tag, status)

    # Collectives: each rank gets what all ranks have given, and picks its own part.

    def Barrier(self):
        self._meet("Barrier")

    def barrier(self):
        self._meet("barrier")

    def bcast(self, obj, root=0):
        return self._meet("bcast", obj, root)[root]

    def gather(self, sendobj, root=0):
        gathered = self._meet("gather", sendobj, root)
        return gathered if self.rank == root else None

    def allgather(self, sendobj):
        return self._meet("allgather", sendobj)

    def allreduce(self, sendobj, op=MPI.SUM):
        return functools.reduce(op, self._meet("allreduce", sendobj, op=op))

    def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
        gathered = self._meet("Allreduce", flat("Allreduce", recvbuf if sendbuf is MPI.IN_PLACE else sendbuf), op=op)
        flat("Allreduce", recvbuf)[:] = functools.reduce(OPERATIONS[name_of(op)], gathered)

    # The parts that these calls are made of.

    def _send(self, name: str, data: Any, dest: int, tag: int) -> Operation:
        peer = self._existing(name, dest, MPI.PROC_NULL)
        data = flat(name, data) if name[0].isupper() else data
        return Operation(self.rank, name, "send", self._thread.line(), peer, tag, pickle.dumps(data))

    def _receive(self, name: str, source: int, tag: int) -> Operation:
        peer = self._existing(name, source, MPI.PROC_NULL, MPI.ANY_SOURCE)
        return Operation(self.rank, name, "probe" if name == "Probe" else "recv", self._thread.line(), peer, tag)

    def _start(self, operation: Operation, into: np.ndarray | None = None) -> Request:
        self._thread.call(operation, at_once=True)
        return Request(self, operation, into)

    def _block(self, name: str, source: int, tag: int, status, buf=None, *sends: Operation) -> Any:
        """Wait for a message, and for the sends that belong to the same call."""
        into = None if buf is None else flat(name, buf)
        operation = self._receive(name, source, tag)
        self._thread.call(*sends, operation)
        return self._received(operation, into, status)

    def _received(self, recv: Operation, into: np.ndarray | None, status: FakeStatus | None) -> Any:
        """Return the object that has arrived, or write the array into `into`, and fill in the status."""
        send = recv.partner
        if send is None or recv.kind == "send":
            return None
        value = pickle.loads(send.data)
        if status is not None:
            status.source = send.rank
            status.tag = send.tag
        if recv.kind == "probe":
            return None
        sends = f"rank {send.rank}'s {send.name} in line {send.line.number} sends"
        if send.name[0].isupper() != (into is not None):
            raise TypeError(f"{sends} {'an array' if into is None else 'an object'}, and {recv.name} doesn't take that")
        if into is None:
            return value
        if value.dtype != into.dtype or value.size > into.size:
            what = f"{value.size} numbers of {value.dtype}"
            raise ValueError(f"{sends} {what}, and the array has room for {into.size} of {into.dtype}")
        into[: value.size] = value
        return None

    def _meet(self, name: str, data: Any = None, root: int | None = None, op: MPI.Op | None = None) -> list:
        """Wait for all ranks, and return what each of them has given."""
        detail = "" if root is None else f" with root {self._existing(name, root)}"
        if op is not None:
            detail += f" with {name_of(op)}"
        if isinstance(data, np.ndarray) and name == "Allreduce":
            detail += f" of {data.size} numbers of {data.dtype}"
        part = Operation(self.rank, name, "collective", self._thread.line(), data=pickle.dumps(data), detail=detail)
        self._thread.call(part)
        return [pickle.loads(each) for each in part.result]

    def _existing(self, name: str, rank: int, *known: int) -> int:
        if not 0 <= rank < self.size and rank not in known:
            raise ValueError(f"{name} names rank {rank}, and there are ranks 0 to {self.size - 1}")
        return rank


def sending(name: str):
    """Return the method of FakeComm that sends with the call of this name."""

    def send(comm: FakeComm, data: Any, dest: int, tag: int = 0) -> Request | None:
        operation = comm._send(name, data, dest, tag)
        if name[0] in "iI":
            return comm._start(operation)
        comm._thread.call(operation)
        return None

    return send


for each in ("Send", "Ssend", "Isend", "Issend", "send", "ssend", "isend", "issend"):
    setattr(FakeComm, each, sending(each))


def name_of(op: MPI.Op) -> str:
    """Return an operation's name. Raises InputError if the explorer does not know it."""
    for name in OPERATIONS:
        if op == getattr(MPI, name):
            return name
    raise InputError(f"the explorer knows {', '.join(OPERATIONS)}, and no other operation: use one of these.")


def flat(name: str, array: Any) -> np.ndarray:
    """Return the elements of an array as a flat array in the same memory. Raises TypeError for anything else."""
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise TypeError(f"{name} takes an array that lies in one piece; for other objects there is {name.lower()}")
    return array.reshape(-1)


class FakeWorld:
    """MPI.COMM_WORLD while the explorer runs: the communicator of the rank whose thread asks."""

    def __getattr__(self, name: str):
        return getattr(getattr(threading.current_thread(), "comm", REAL_WORLD), name)
