"""A fake MPI inside one process, in which the deadlock explorer of 01_mpi_basics runs programs.

It has mpi4py's calls, but passes each of them to a schedule, which decides when the call ends.
"""

import contextlib
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import mpi4py
import numpy as np
from mpi4py import MPI

from workshop_lib.errors import InputError
from workshop_lib.lessons.mpi_basics.matching import Line, Operation


class Caller(Protocol):
    """What a communicator needs from the rank that it belongs to."""

    size: int

    def line(self) -> Line: ...
    def issue(self, name: str, operations: list[Operation], at_once: bool) -> None: ...
    def wait(self, name: str, operations: list[Operation]) -> None: ...


class Status:
    """The status that a receive or probe fills in about its message, as in mpi4py."""

    source = MPI.ANY_SOURCE
    tag = MPI.ANY_TAG
    count = 0

    def fill(self, message: Operation | None) -> None:
        if message is not None:
            self.source = message.rank
            self.tag = message.tag
            self.count = message.data.size if isinstance(message.data, np.ndarray) else len(message.data or b"")

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag

    def Get_count(self, datatype=None) -> int:
        return self.count


class Request:
    """The request that a nonblocking call returns, as in mpi4py."""

    def __init__(self, caller: Caller, operation: Operation):
        self.caller = caller
        self.operation = operation

    def Wait(self, status: Status | None = None) -> bool:
        self.caller.wait("Wait", [self.operation])
        if status is not None:
            status.fill(self.operation.partner)
        return True

    def wait(self, status: Status | None = None) -> Any:
        self.Wait(status)
        return self.operation.result

    @staticmethod
    def Waitall(requests: list["Request"], statuses: list[Status] | None = None) -> bool:
        if requests:
            requests[0].caller.wait("Waitall", [request.operation for request in requests])
        for request, status in zip(requests, statuses or [], strict=False):
            status.fill(request.operation.partner)
        return True

    @classmethod
    def waitall(cls, requests: list["Request"], statuses: list[Status] | None = None) -> list:
        cls.Waitall(requests, statuses)
        return [request.operation.result for request in requests]

    def __getattr__(self, name: str):
        raise InputError(f"the explorer knows Wait and Waitall, but no request.{name}: use one of these.")


class FakeComm:
    """One rank's communicator. Its calls take the same arguments as in mpi4py.

    Upper-case calls take arrays, lower-case calls any object. Raises InputError for any other call.
    """

    def __init__(self, rank: int, size: int, caller: Caller):
        self.rank = rank
        self.size = size
        self._caller = caller
        self._operations = 0

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def __getattr__(self, name: str):
        known = sorted(call for call in vars(FakeComm) if not call.startswith(("_", "Get_")))
        raise InputError(f"the explorer knows no comm.{name}. It knows {', '.join(known)}.")

    # Messages.

    def Send(self, buf, dest, tag=0):
        return self._block(self._send("Send", _array("Send", buf), dest, tag))

    def Ssend(self, buf, dest, tag=0):
        return self._block(self._send("Ssend", _array("Ssend", buf), dest, tag))

    def Isend(self, buf, dest, tag=0):
        return self._start(self._send("Isend", _array("Isend", buf), dest, tag), memory("Isend", buf))

    def Issend(self, buf, dest, tag=0):
        return self._start(self._send("Issend", _array("Issend", buf), dest, tag), memory("Issend", buf))

    def send(self, obj, dest, tag=0):
        return self._block(self._send("send", pickle.dumps(obj), dest, tag))

    def ssend(self, obj, dest, tag=0):
        return self._block(self._send("ssend", pickle.dumps(obj), dest, tag))

    def isend(self, obj, dest, tag=0):
        return self._start(self._send("isend", pickle.dumps(obj), dest, tag))

    def issend(self, obj, dest, tag=0):
        return self._start(self._send("issend", pickle.dumps(obj), dest, tag))

    def Recv(self, buf, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        return self._block(self._receive("Recv", source, tag, _room("Recv", buf)), status=status)

    def Irecv(self, buf, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG):
        return self._start(self._receive("Irecv", source, tag, _room("Irecv", buf)))

    def recv(self, buf=None, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        return self._block(self._receive("recv", source, tag), status=status)

    def irecv(self, buf=None, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG):
        return self._start(self._receive("irecv", source, tag))

    def Sendrecv(self, sendbuf, dest, sendtag=0, recvbuf=None, source=MPI.ANY_SOURCE, recvtag=MPI.ANY_TAG, status=None):
        send = self._send("Sendrecv", _array("Sendrecv", sendbuf), dest, sendtag)
        return self._block(send, self._receive("Sendrecv", source, recvtag, _room("Sendrecv", recvbuf)), status=status)

    def sendrecv(self, sendobj, dest, sendtag=0, recvbuf=None, source=MPI.ANY_SOURCE, recvtag=MPI.ANY_TAG, status=None):
        send = self._send("sendrecv", pickle.dumps(sendobj), dest, sendtag)
        return self._block(send, self._receive("sendrecv", source, recvtag), status=status)

    def Probe(self, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        self._block(self._receive("Probe", source, tag), status=status)
        return True

    def probe(self, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        self._block(self._receive("probe", source, tag), status=status)
        return True

    # Collectives.

    def Barrier(self):
        return self._block(self._collective("Barrier"))

    def barrier(self):
        return self._block(self._collective("barrier"))

    def Ibarrier(self):
        return self._start(self._collective("Ibarrier"))

    def Bcast(self, buf, root=0):
        into = None if self.rank == root else _room("Bcast", buf)
        return self._block(self._collective("Bcast", _array("Bcast", buf), into, root))

    def Ibcast(self, buf, root=0):
        into = None if self.rank == root else _room("Ibcast", buf)
        return self._start(self._collective("Ibcast", _array("Ibcast", buf), into, root))

    def bcast(self, obj, root=0):
        return self._block(self._collective("bcast", pickle.dumps(obj) if self.rank == root else None, root=root))

    def Scatter(self, sendbuf, recvbuf, root=0):
        return self._block(self._arrays("Scatter", sendbuf, recvbuf, root, gives=self.rank == root))

    def Iscatter(self, sendbuf, recvbuf, root=0):
        return self._start(self._arrays("Iscatter", sendbuf, recvbuf, root, gives=self.rank == root))

    def scatter(self, sendobj, root=0):
        return self._block(self._collective("scatter", pickle.dumps(sendobj) if self.rank == root else None, root=root))

    def Gather(self, sendbuf, recvbuf, root=0):
        return self._block(self._arrays("Gather", sendbuf, recvbuf, root, gets=self.rank == root))

    def Igather(self, sendbuf, recvbuf, root=0):
        return self._start(self._arrays("Igather", sendbuf, recvbuf, root, gets=self.rank == root))

    def gather(self, sendobj, root=0):
        return self._block(self._collective("gather", pickle.dumps(sendobj), root=root))

    def Reduce(self, sendbuf, recvbuf, op=MPI.SUM, root=0):
        return self._block(self._arrays("Reduce", sendbuf, recvbuf, root, op, gets=self.rank == root))

    def Ireduce(self, sendbuf, recvbuf, op=MPI.SUM, root=0):
        return self._start(self._arrays("Ireduce", sendbuf, recvbuf, root, op, gets=self.rank == root))

    def reduce(self, sendobj, op=MPI.SUM, root=0):
        return self._block(self._collective("reduce", pickle.dumps(sendobj), root=root, op=op))

    def Allgather(self, sendbuf, recvbuf):
        return self._block(self._arrays("Allgather", sendbuf, recvbuf))

    def Iallgather(self, sendbuf, recvbuf):
        return self._start(self._arrays("Iallgather", sendbuf, recvbuf))

    def allgather(self, sendobj):
        return self._block(self._collective("allgather", pickle.dumps(sendobj)))

    def Alltoall(self, sendbuf, recvbuf):
        return self._block(self._arrays("Alltoall", sendbuf, recvbuf))

    def Ialltoall(self, sendbuf, recvbuf):
        return self._start(self._arrays("Ialltoall", sendbuf, recvbuf))

    def alltoall(self, sendobj):
        return self._block(self._collective("alltoall", pickle.dumps(sendobj)))

    def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
        return self._block(self._arrays("Allreduce", sendbuf, recvbuf, op=op))

    def Iallreduce(self, sendbuf, recvbuf, op=MPI.SUM):
        return self._start(self._arrays("Iallreduce", sendbuf, recvbuf, op=op))

    def allreduce(self, sendobj, op=MPI.SUM):
        return self._block(self._collective("allreduce", pickle.dumps(sendobj), op=op))

    def Scan(self, sendbuf, recvbuf, op=MPI.SUM):
        return self._block(self._arrays("Scan", sendbuf, recvbuf, op=op))

    def scan(self, sendobj, op=MPI.SUM):
        return self._block(self._collective("scan", pickle.dumps(sendobj), op=op))

    def Reduce_scatter_block(self, sendbuf, recvbuf, op=MPI.SUM):
        return self._block(self._arrays("Reduce_scatter_block", sendbuf, recvbuf, op=op))

    # The parts that these calls are made of.

    def _block(self, *operations: Operation, status: Status | None = None) -> Any:
        """Wait for a call's operations, and return the result of the last one."""
        self._caller.issue(operations[0].name, list(operations), False)
        if status is not None:
            status.fill(operations[-1].partner)
        return operations[-1].result

    def _start(self, operation: Operation, buffer: np.ndarray | None = None) -> Request:
        """Start a nonblocking call. The buffer must not change until the rank has waited for the request."""
        operation.buffer = operation.into if buffer is None else buffer
        if operation.buffer is not None:
            operation.before = operation.buffer.tobytes()
        self._caller.issue(operation.name, [operation], True)
        return Request(self._caller, operation)

    def _send(self, name: str, data: np.ndarray | bytes, dest: int, tag: int) -> Operation:
        peer = self._rank(name, dest, (MPI.PROC_NULL,))
        return self._new(name, "send", peer=peer, tag=tag, data=data, synchronous="ss" in name.lower())

    def _receive(self, name: str, source: int, tag: int, into: np.ndarray | None = None) -> Operation:
        peer = self._rank(name, source, (MPI.ANY_SOURCE, MPI.PROC_NULL))
        kind = "probe" if name.lower() == "probe" else "recv"
        return self._new(name, kind, peer=peer, tag=tag, into=into)

    def _arrays(
        self, name: str, sendbuf, recvbuf, root: int | None = None, op=None, gives: bool = True, gets: bool = True
    ) -> Operation:
        """A collective of arrays. gives, gets: whether this rank sends and receives anything in it."""
        into = _room(name, recvbuf) if gets else None
        if sendbuf is MPI.IN_PLACE:
            if op is None or into is None or name == "Reduce_scatter_block":
                raise InputError(f"the explorer knows no IN_PLACE for {name}: give it an array to send.")
            sendbuf = into
        return self._collective(name, _array(name, sendbuf) if gives else None, into, root, op)

    def _collective(
        self, name: str, data: np.ndarray | bytes | None = None, into: np.ndarray | None = None, root=None, op=None
    ) -> Operation:
        if root is not None:
            self._rank(name, root, ())
        kind = name.removeprefix("I").lower()
        return self._new(name, kind, data=data, into=into, root=root, op=op)

    def _new(self, name: str, kind: str, **fields) -> Operation:
        self._operations += 1
        return Operation(self.rank, self._operations, name, self._caller.line(), kind, **fields)

    def _rank(self, name: str, rank: int, known: tuple) -> int:
        if not 0 <= rank < self.size and rank not in known:
            raise ValueError(f"{name} names rank {rank}, and there are ranks 0 to {self.size - 1}")
        return rank


def _array(name: str, given: Any) -> np.ndarray:
    """A copy of an array that is sent."""
    return memory(name, given).copy()


def _room(name: str, given: Any) -> np.ndarray:
    """The memory that an array is received into."""
    return memory(name, given, written=True)


def memory(name: str, given: Any, written: bool = False) -> np.ndarray:
    """Return the elements of an array, or of mpi4py's [array, count, type], as a flat array in the same memory.

    Raises TypeError or ValueError for what mpi4py refuses.
    """
    array, *more = given if isinstance(given, list | tuple) and given else [given]
    if not isinstance(array, np.ndarray | np.generic | memoryview | bytearray | bytes):
        raise TypeError(f"{name} takes an array, not {type(given).__name__}; for other objects there is {name.lower()}")
    array = np.asarray(array)
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} takes an array that lies in one piece: make a copy of it first")
    if written and not array.flags.writeable:
        raise ValueError(f"{name} cannot write into this array")
    flat = array.reshape(-1)
    return flat[: more[0]] if more and isinstance(more[0], int) else flat


class FakeMPI:
    """mpi4py's MPI, except for requests, statuses, and COMM_WORLD, which is the communicator of the rank that asks."""

    Request = Request
    Status = Status

    @property
    def COMM_WORLD(self):
        return getattr(threading.current_thread(), "comm", None) or MPI.COMM_WORLD

    def __getattr__(self, name: str):
        return getattr(MPI, name)


@contextlib.contextmanager
def replaced_mpi(program: Callable) -> Iterator[None]:
    """Replace MPI by the fake one for `program` and for the functions that it closes over, inside the block.

    Covers the global names that are MPI, and what the program imports from mpi4py itself.
    """
    inside = [cell.cell_contents for cell in getattr(program, "__closure__", None) or () if cell.cell_contents]
    fake: Any = FakeMPI()
    replaced = []
    for names in [getattr(function, "__globals__", {}) for function in (program, *inside)]:
        replaced += [(names, name) for name, value in names.items() if value is MPI]
    try:
        mpi4py.MPI = fake
        for names, name in replaced:
            names[name] = fake
        yield
    finally:
        mpi4py.MPI = MPI
        for names, name in replaced:
            names[name] = MPI
