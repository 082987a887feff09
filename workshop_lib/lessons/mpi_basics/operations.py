"""Messages and collectives in the deadlock explorer of 01_mpi_basics, and which of them match.

A message matches a receive if rank and tag fit. Two messages from one rank to another never overtake each other: if
several of them fit a receive, the one sent first matches, and if several receives fit a message, the one called first
matches (MPI 4.1, section 3.5). Collectives match by their order alone (section 6.14).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpi4py import MPI


class Line(NamedTuple):
    """A line of the learner's program."""

    number: int
    text: str


@dataclass(eq=False)
class Operation:
    """One end of a message, or one rank's part in a collective.

    kind: "send", "recv", "probe" or "collective". data: what is sent, pickled. result: in a collective, the data
    of all ranks. buffered: whether MPI has copied a message, so that its sender can go on. detail: what must be the
    same on all ranks in a collective, besides its name.
    """

    rank: int
    name: str
    kind: str
    line: Line
    peer: int = MPI.PROC_NULL
    tag: int = 0
    data: bytes = b""
    detail: str = ""
    number: int = 0  # counts the operations of this rank
    started: int = 0  # the run's count of events when it was called
    moment: int = 0  # the run's count of events when it was done, or when its sender could go on
    done: bool = False
    buffered: bool = False
    partner: "Operation | None" = None
    result: tuple[bytes, ...] = ()

    @property
    def key(self) -> tuple[int, int]:
        """What names this operation in every run that has come to it."""
        return self.rank, self.number


def fits(recv: Operation, send: Operation) -> bool:
    """Return whether source, destination and tag of a receive and a send agree."""
    from_it = recv.peer in (MPI.ANY_SOURCE, send.rank) and send.peer == recv.rank
    return from_it and recv.tag in (MPI.ANY_TAG, send.tag)


def may_match(recv: Operation, send: Operation, pending: Sequence[Operation]) -> bool:
    """Return whether a receive and a send fit, and no earlier message or receive takes precedence."""
    if not fits(recv, send):
        return False
    for other in pending:
        if other.kind == "recv" and other.rank == recv.rank and other.number < recv.number and fits(other, send):
            return False
        if other.kind == "send" and other.rank == send.rank and other.number < send.number and fits(recv, other):
            return False
    return True
