"""A fake MPI inside one process, in which the deadlock explorer of 01_mpi_basics runs programs.

It has mpi4py's calls, but passes each of them to a schedule, which decides when the call ends.
"""

import contextlib
import functools
import inspect
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import mpi4py
import numpy as np
from mpi4py import MPI

from workshop_lib.errors import InputError
from workshop_lib.lessons.mpi_basics.matching import ROOT_GETS, ROOT_GIVES, Line, Operation

SENDS = ["Send", "Ssend", "Isend", "Issend"]
MESSAGES = [*SENDS, "Recv", "Irecv", "Sendrecv"]
COLLECTIVES = ["Bcast", "Reduce", "Allreduce", "Gather", "Allgather", "Scatter", "Alltoall"]
CALLS = {
    *MESSAGES,
    *(name.lower() for name in MESSAGES),
    "Probe",
    "probe",
    *COLLECTIVES,
    *(name.lower() for name in COLLECTIVES),
    *(f"I{name.lower()}" for name in [*COLLECTIVES, "Barrier"]),
    "Barrier",
    "barrier",
    "Reduce_scatter_block",
    "Scan",
    "scan",
}
IN_PLACE = ("allreduce", "reduce", "scan")
GIVEN = ("buf", "sendbuf", "obj", "sendobj")  # the parameters that hold what a call sends


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

    Raises InputError for any call that is not in CALLS.
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

    def __getattr__(self, name: str) -> Callable:
        if name not in CALLS:
            raise InputError(f"the explorer knows no comm.{name}. It knows {', '.join(sorted(CALLS))}.")
        return functools.partial(self._call, name)

    def _call(self, name: str, *args, **kwargs):
        given = inspect.signature(getattr(MPI.Intracomm, name)).bind(self, *args, **kwargs)
        given.apply_defaults()
        of = given.arguments
        operations = [self._send(name, of)] if "dest" in of else []
        operations += [self._receive(name, of)] if "source" in of else []
        operations = operations or [self._collective(name, of)]
        at_once = name[0] in "iI"
        if at_once:
            self._remember(operations[0], of)
        self._caller.issue(name, operations, at_once)
        if at_once:
            return Request(self._caller, operations[0])
        if of.get("status") is not None:
            of["status"].fill(operations[-1].partner)
        return True if operations[-1].kind == "probe" else operations[-1].result

    def _new(self, name: str, kind: str, **fields) -> Operation:
        self._operations += 1
        return Operation(self.rank, self._operations, name, self._caller.line(), kind, **fields)

    def _rank(self, name: str, rank: int, known: tuple) -> int:
        if not 0 <= rank < self.size and rank not in known:
            raise ValueError(f"{name} names rank {rank}, and there are ranks 0 to {self.size - 1}")
        return rank

    def _send(self, name: str, of: dict) -> Operation:
        dest = self._rank(name, of["dest"], (MPI.PROC_NULL,))
        tag = of["sendtag" if "sendtag" in of else "tag"]
        data = _sent(name, of)
        return self._new(name, "send", peer=dest, tag=tag, data=data, synchronous="ss" in name.lower())

    def _receive(self, name: str, of: dict) -> Operation:
        source = self._rank(name, of["source"], (MPI.ANY_SOURCE, MPI.PROC_NULL))
        kind = "probe" if name.lower() == "probe" else "recv"
        tag = of["recvtag" if "recvtag" in of else "tag"]
        into = None
        if kind == "recv" and name[0].isupper():
            into = memory(name, of["recvbuf" if "recvbuf" in of else "buf"], written=True)
        return self._new(name, kind, peer=source, tag=tag, into=into)

    def _collective(self, name: str, of: dict) -> Operation:
        kind = (name[1:] if name[0] == "I" else name).lower()
        into = None
        root = self._rank(name, of["root"], ()) if "root" in of else None
        if kind in ROOT_GIVES:
            gets = kind == "scatter" or self.rank != root
            gives = self.rank == root or "buf" in of
        else:
            gets = kind not in ROOT_GETS or self.rank == root
            gives = kind != "barrier"
        if name[0].isupper() and kind != "barrier" and gets:
            into = memory(name, of["recvbuf" if "recvbuf" in of else "buf"], written=True)
        if of.get("sendbuf") is MPI.IN_PLACE:
            if kind not in IN_PLACE or into is None:
                raise InputError(f"the explorer knows no IN_PLACE for {name}: give it an array to send.")
            of = of | {"sendbuf": into}
        data = _sent(name, of) if gives else None
        return self._new(name, kind, data=data, into=into, root=root, op=of.get("op"))

    def _remember(self, operation: Operation, of: dict) -> None:
        """Remember the memory that must not change until the rank has waited."""
        operation.buffer = operation.into
        if operation.kind == "send" and operation.arrays:
            operation.buffer = memory(operation.name, of["buf"])
        if operation.buffer is not None:
            operation.before = operation.buffer.tobytes()


def _sent(name: str, of: dict) -> np.ndarray | bytes:
    given = next(of[each] for each in GIVEN if each in of)
    return memory(name, given).copy() if name[0].isupper() else pickle.dumps(given)


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
