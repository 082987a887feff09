"""MPI's rules for which messages and collectives match, and with what result, for the explorer of 01_mpi_basics.

A message matches a receive if rank and tag fit. Two messages from one rank to another never overtake each other: if
several of them fit a receive, the one sent first matches, and if several receives fit a message, the one called first
matches (MPI 4.1, section 3.5). Collectives match by their order alone (section 6.14).
"""

import functools
import operator
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from workshop_lib.errors import InputError

FOLDS = [
    (MPI.SUM, np.add),
    (MPI.PROD, np.multiply),
    (MPI.MAX, np.maximum),
    (MPI.MIN, np.minimum),
    (MPI.LAND, np.logical_and),
    (MPI.LOR, np.logical_or),
    (MPI.BAND, operator.and_),
    (MPI.BOR, operator.or_),
]
ROOT_GIVES = ("bcast", "scatter")
ROOT_GETS = ("reduce", "gather")


class Line(NamedTuple):
    """A line of the learner's program."""

    number: int
    text: str


@dataclass(eq=False)
class Operation:
    """One end of a message, or one rank's part in a collective.

    kind: "send", "recv", "probe" or the collective's name in lower case. data: what is sent, an array or pickled
    bytes. into: the array to receive into. buffer: the memory that a nonblocking call was given; before: its bytes at
    that time. left: whether the rank may go on before the operation is done.
    """

    rank: int
    number: int  # counts the operations of this rank
    name: str
    line: Line
    kind: str
    peer: int = MPI.PROC_NULL
    tag: int = 0
    data: np.ndarray | bytes | None = None
    into: np.ndarray | None = None
    buffer: np.ndarray | None = None
    before: bytes = b""
    synchronous: bool = False
    root: int | None = None
    op: Any = None
    done: bool = False
    left: bool = False
    started: int = 0  # the run's count of events when it was called
    moment: int = 0  # the run's count of events when it was done or left
    partner: "Operation | None" = None
    result: Any = None
    group: list["Operation"] = field(default_factory=list)  # this collective's parts on all ranks that have called it

    @property
    def arrays(self) -> bool:
        """Whether the call takes arrays, as upper-case calls do."""
        return self.name[0].isupper()

    @property
    def value(self) -> Any:
        """The value that is sent, as its receiver gets it."""
        return pickle.loads(self.data) if isinstance(self.data, bytes) else self.data


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


def wrong_message(recv: Operation, send: Operation) -> str:
    """Return what is wrong with a message for the receive that it matches; an empty string if nothing is."""
    sent = send.data
    room = recv.into
    ends = f"rank {send.rank}'s {send.name} in line {send.line.number} meets rank {recv.rank}'s {recv.name} in line "
    if send.arrays != recv.arrays:
        return f"{ends}{recv.line.number}: one sends or receives an array, the other an object. Write both alike."
    if not isinstance(sent, np.ndarray) or room is None:
        return ""
    if sent.size and room.size and sent.dtype != room.dtype:
        return f"{ends}{recv.line.number}: {sent.dtype} is sent, and the array it goes into holds {room.dtype}."
    if sent.size > room.size:
        return f"{ends}{recv.line.number}: {sent.size} numbers are sent, and the array has room for {room.size}."
    return ""


def wrong_collective(first: Operation, other: Operation, size: int) -> str:
    """Return how two ranks' parts in a collective differ where they must agree; an empty string if they agree."""
    if first.name != other.name:
        return _apart(first, first.name, other, other.name)
    if first.root != other.root:
        return _apart(first, f"{first.name} with root {first.root}", other, f"{other.name} with root {other.root}")
    if first.op is not None and first.op != other.op:
        return _apart(first, f"{first.name} with one operation", other, "the same with another")
    counts = [(each, _count(each, size)) for each in (first, other)]
    if None not in (counts[0][1], counts[1][1]) and counts[0][1] != counts[1][1]:
        texts = [f"{each.name} with {count[0]:g} numbers of {count[1]}" for each, count in counts if count]
        return _apart(first, texts[0], other, texts[1])
    return ""


def _apart(first: Operation, has: str, other: Operation, has_other: str) -> str:
    return (
        f"rank {first.rank} calls {has} in line {first.line.number} where rank {other.rank} calls {has_other} "
        f"in line {other.line.number}."
    )


def _count(part: Operation, size: int) -> tuple[float, np.dtype] | None:
    """Return how many numbers this rank's share has and their type, which must agree on all ranks; None for objects."""
    if not part.arrays or part.kind == "barrier":
        return None
    if part.kind == "scatter":
        array, whole = (part.into, False) if part.into is not None else (part.data, True)
    else:
        array = part.data
        whole = False
    if not isinstance(array, np.ndarray):
        return None
    return array.size / (size if whole else 1), array.dtype


def wrong_room(part: Operation) -> str:
    """Return what is wrong with a rank's array for the result of a collective; an empty string if nothing is."""
    result = part.result
    room = part.into
    if not isinstance(result, np.ndarray) or room is None or (result.size, result.dtype) == (room.size, room.dtype):
        return ""
    return (
        f"rank {part.rank}'s {part.name} in line {part.line.number} receives {result.size} numbers of {result.dtype} "
        f"into an array of {room.size} of {room.dtype}."
    )


def may_leave(part: Operation) -> bool:
    """Return whether MPI may let this rank go on before the other ranks arrive.

    It may in a send that is not synchronous, and in a collective from which the rank already has what it needs.
    """
    if part.kind == "send":
        return not part.synchronous
    at_root = part.rank == part.root
    if part.kind in ROOT_GIVES:
        return at_root or any(each.rank == part.root for each in part.group)
    return part.kind in ROOT_GETS and not at_root


def combine(part: Operation, size: int) -> Any:
    """Return what this rank gets from a collective; None if nothing. Raises ValueError for data it cannot deal out."""
    kind = part.kind
    rank = part.rank
    root = part.root
    values: dict[int | None, Any] = {each.rank: each.value for each in part.group}
    split = (lambda value: np.split(value, size)) if part.arrays else functools.partial(_one_each, size=size)
    join = np.concatenate if part.arrays else list
    if kind == "barrier" or (kind in ROOT_GETS and rank != root):
        return None
    if kind == "bcast":
        return values[root]
    if kind == "scatter":
        return split(values[root])[rank]
    in_order = [values[each] for each in range(size)]
    if kind in ("gather", "allgather"):
        return join(in_order)
    if kind == "alltoall":
        return join([split(value)[rank] for value in in_order])
    total = functools.reduce(_fold(part), in_order[: rank + 1] if kind == "scan" else in_order)
    return split(total)[rank] if kind == "reduce_scatter_block" else total


def _one_each(objects: Sequence, size: int) -> Sequence:
    if len(objects) != size:
        raise ValueError(f"there are {len(objects)} objects for {size} ranks")
    return objects


def _fold(part: Operation):
    """Return the function that combines two ranks' values. Raises InputError for an operation that is not in FOLDS."""
    if not part.arrays:
        return part.op
    known = [fold for op, fold in FOLDS if op == part.op]
    if not known:
        raise InputError("the explorer knows SUM, PROD, MAX, MIN, LAND, LOR, BAND and BOR: use one of these.")
    return known[0]
