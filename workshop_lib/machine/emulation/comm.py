"""A communicator of emulated time, below mpi4py code and PyTorch's process groups alike.

It is mpi4py's own communicator: the same calls move the same values. Beside each message travels the emulated time at
which it leaves its sender, so the receiver knows when it arrives. Beside each collective, the ranks find out when the
last one of them was ready.
"""

import array
import functools
import inspect
import pickle
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from workshop_lib.errors import InputError
from workshop_lib.machine.emulation.clock import CLOCK
from workshop_lib.machine.emulation.links import Network, RankLinks

PLAIN = MPI.Intracomm
PLAIN_REQUEST = MPI.Request
# The kinds of collectives in links.py, by the lower-case names of mpi4py's.
KINDS = {name: name for name in ("allreduce", "reduce", "bcast", "gather", "scatter", "allgather", "alltoall")}
KINDS |= {"barrier": "barrier", "scan": "scan", "exscan": "scan", "reduce_scatter": "reduce_scatter"}
UPPER = {name.capitalize(): kind for name, kind in KINDS.items()}
UPPER |= {f"{name}v": UPPER[name] for name in ("Gather", "Scatter", "Allgather", "Alltoall")}
UPPER |= {"Alltoallw": "alltoall", "Reduce_scatter_block": "reduce_scatter"}
SENDS = ("Send", "Ssend", "Isend", "Issend", "send", "ssend", "isend", "issend")
# Calls that return a communicator of another kind.
REFUSED = ("Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent", "Create_intercomm")
NEW = ("Dup", "Split", "Split_type", "Create", "Create_group", "Clone")  # calls that return a new communicator


def _timed(call: Callable) -> Callable:
    """Charge the CPU time before this call, but not that in it, which only moves values on the real machine."""

    @functools.wraps(call)
    def timed(*args, **kwargs):
        CLOCK.enter()
        result = call(*args, **kwargs)
        CLOCK.leave()
        return result

    return timed


class Places:
    """What all communicators of this rank share: the network, this rank's links, and the declared size of messages.

    `scale` is by how much a real array's bytes are multiplied: a small network stands for a large one. Pickled objects
    are never multiplied.
    """

    def __init__(self, network: Network, rank: int):
        self.network = network
        self.rank = rank
        self.links = RankLinks()
        self.scale = 1.0


class EmulatedCollective:
    """One collective under way: when the last rank was ready, and when it ends, which all ranks compute alike.

    Until that is known, this rank's link is reserved as if no other rank came later, so collectives of other groups
    that this rank starts meanwhile wait for the link.
    """

    def __init__(self, comm: "EmulatedComm", kind: str, nbytes: float):
        self.comm = comm
        self.kind = kind
        self.inside = comm.places.network.inside(comm.members)
        seconds = comm.places.network.collective_s(kind, comm.members, nbytes)
        begin = comm.places.links.reserve(self.inside, max(CLOCK.now_s, comm.reserved_s), seconds)
        self.reserved = (begin, begin + seconds)
        comm.reserved_s = begin + seconds
        self.latest = array.array("d", [begin, nbytes])
        self.end_s: float | None = None
        self.agreed = comm.times.Iallreduce(MPI.IN_PLACE, self.latest, MPI.MAX)
        comm.under_way.append(self)

    def arrive(self, status: MPI.Status | None = None) -> None:
        """Move the clock to the end of this collective. Collectives of one communicator run in the order of their
        start."""
        while self.end_s is None:
            self.comm.under_way.pop(0).settle()
        CLOCK.wait_until(self.end_s)

    def settle(self) -> None:
        comm = self.comm
        self.agreed.Wait()
        ready_s, nbytes = self.latest
        begin = max(ready_s, comm.free_s)
        self.end_s = comm.free_s = begin + comm.places.network.collective_s(self.kind, comm.members, nbytes)
        comm.reserved_s = max(comm.reserved_s, self.end_s)
        comm.places.links.move(self.inside, self.reserved, (begin, self.end_s))


class Sent:
    """A message that this rank has sent. The rank is free again when its link has taken the whole message."""

    agreed = None

    def __init__(self, comm: "EmulatedComm", dest: int, tag: int, nbytes: float, synchronous: bool = False):
        self.end_s = CLOCK.now_s
        if dest == MPI.PROC_NULL:
            return
        places = comm.places
        link = places.network.link(comm.members, places.rank, comm.members[dest])
        seconds = 0.0
        alpha_s = 0.0
        if comm.members[dest] != places.rank:
            seconds = nbytes * link.s_per_byte
            alpha_s = link.latency_s
        inside = places.network.inside((places.rank, comm.members[dest]))
        self.end_s = places.links.out[inside].carry(CLOCK.now_s, seconds)
        stamp = array.array("d", [self.end_s - seconds + alpha_s, seconds])
        if synchronous:
            self.end_s += alpha_s
        comm.stamps = [request for request in comm.stamps if not request.Test()]
        comm.stamps.append(comm.times.Isend(stamp, dest, tag))

    def arrive(self, status: MPI.Status | None = None) -> None:
        CLOCK.wait_until(self.end_s)


class Received:
    """A message that this rank receives, with the time at which its first byte arrives, and how long it takes.

    A receive from any source asks for the time once it knows the source. With such receives, messages may arrive in
    another order than the emulated one: that of the real machine.
    """

    def __init__(self, comm: "EmulatedComm", source: int, tag: int):
        self.comm = comm
        self.source = source
        self.stamp = array.array("d", [0.0, 0.0])
        self.agreed = None
        self.done = source == MPI.PROC_NULL
        self.end_s = 0.0
        if source >= 0 and tag >= 0:  # the constants for any source and any tag are negative
            self.agreed = comm.times.Irecv(self.stamp, source, tag)

    def arrive(self, status: MPI.Status | None = None) -> None:
        if self.done:
            return
        self.done = True
        if self.agreed is not None:
            self.agreed.Wait()
        elif status is not None:
            self.source = status.Get_source()
            self.comm.times.Recv(self.stamp, self.source, status.Get_tag())
        places = self.comm.places
        first_s, seconds = self.stamp
        inside = places.network.inside((places.rank, self.comm.members[self.source]))
        self.end_s = places.links.into[inside].carry(first_s, seconds)
        CLOCK.wait_until(self.end_s)


class EmulatedRequest(PLAIN_REQUEST):
    """A request whose wait also moves the clock. `Test` counts as a wait if the real message has arrived."""

    message: EmulatedCollective | Sent | Received
    real: MPI.Request  # keeps alive the memory that MPI works on

    # Whoever waits for `parts` itself calls the first before, and the second after `arrive`.
    enter = staticmethod(CLOCK.enter)
    leave = staticmethod(CLOCK.leave)

    @property
    def parts(self) -> list[MPI.Request]:
        """The real requests behind this one, that of the values first."""
        return [self] if self.message.agreed is None else [self, self.message.agreed]

    def arrive(self, status: MPI.Status | None = None) -> None:
        """Move the clock, after the real message has arrived."""
        self.message.arrive(status)

    @classmethod
    def Waitall(cls, requests: Iterable, statuses: list | None = None) -> Literal[True]:
        for request in requests:
            request.Wait()
        return True

    @classmethod
    def waitall(cls, requests: Iterable, statuses: list | None = None) -> list:
        return [request.wait() for request in requests]


class EmulatedComm(PLAIN):
    """mpi4py's communicator, whose messages and collectives take emulated time.

    Wildcard receives, see `Received`. Probes, persistent requests, windows and files take no emulated time.
    """

    places: Places
    world_group: MPI.Group
    times: MPI.Intracomm  # where the times travel
    members: tuple[int, ...]  # the ranks of this communicator in the world
    under_way: list[EmulatedCollective]
    stamps: list[MPI.Request]  # keep alive the times that are being sent
    free_s: float  # when the last collective of this communicator ends of which that is known
    reserved_s: float  # when the last collective that this rank has started would end if no other rank came later

    @classmethod
    def over(cls, comm: MPI.Intracomm, places: Places, world: MPI.Group) -> "EmulatedComm":
        """Return the emulated form of a communicator. All its ranks call it."""
        comm = PLAIN(comm)  # Dup and Clone return this class, and the times have to travel over a plain communicator
        emulated = cls(comm)
        emulated.places = places
        emulated.world_group = world
        emulated.times = comm.Dup()
        emulated.members = tuple(MPI.Group.Translate_ranks(comm.group, range(comm.size), world))
        emulated.under_way = []
        emulated.stamps = []
        emulated.free_s = 0.0
        emulated.reserved_s = 0.0
        return emulated

    def Free(self) -> None:
        self.times.Free()
        super().Free()

    def _bytes(self, *buffers) -> float:
        """The declared bytes of the largest of these arrays."""
        return self.places.scale * max((_nbytes(buffer) for buffer in buffers), default=0)


def _request(real: MPI.Request, message: EmulatedCollective | Sent | Received) -> EmulatedRequest:
    request = EmulatedRequest(real)
    request.message = message
    request.real = real
    return request


def _completed(name: str) -> Callable:
    """A wait for a request, or a test of it, that moves the clock if the real message has arrived."""
    plain = getattr(PLAIN_REQUEST, name)

    @functools.wraps(plain)
    def call(self, status: MPI.Status | None = None):
        status = status or MPI.Status()
        result = plain(self, status)
        waits = name in ("Wait", "wait")
        done = result[0] if name == "test" else result
        if waits or done:
            self.arrive(status)
        return result

    return call


def _pickled(obj) -> int:
    return len(pickle.dumps(obj))


def _nbytes(buffer) -> int:
    """The bytes of an array, or of mpi4py's [array, ...]; 0 for everything else, such as a root or MPI.IN_PLACE."""
    if isinstance(buffer, list | tuple):
        return _nbytes(buffer[0]) if buffer else 0
    if isinstance(buffer, np.ndarray | memoryview):
        return buffer.nbytes
    return memoryview(buffer).nbytes if isinstance(buffer, array.array | bytearray | bytes) else 0


def _given(plain: Callable, args: tuple, kwargs: dict) -> dict[str, Any]:
    """The arguments of a call of mpi4py's, by its own names for them; the first one is the communicator."""
    bound = inspect.signature(plain).bind(*args, **kwargs)
    bound.apply_defaults()
    if "status" in bound.arguments:
        bound.arguments["status"] = bound.arguments["status"] or MPI.Status()
    return bound.arguments


def _send(name: str) -> Callable:
    """A call that sends: an array if its name has a capital, else a pickled object."""
    plain = getattr(PLAIN, name)

    @functools.wraps(plain)
    def call(*args, **kwargs):
        comm, message, dest, tag = _given(plain, args, kwargs).values()
        nbytes = _pickled(message) if name.islower() else comm._bytes(message)
        sent = Sent(comm, dest, tag, nbytes, synchronous=name.lower().endswith("ssend"))
        real = plain(comm, message, dest, tag)
        if name.lower().startswith("i"):
            return _request(real, sent)
        sent.arrive()
        return None

    return call


def _receive(name: str) -> Callable:
    plain = getattr(PLAIN, name)

    @functools.wraps(plain)
    def call(*args, **kwargs):
        given = _given(plain, args, kwargs)
        received = Received(given["self"], given["source"], given["tag"])
        real = plain(*given.values())
        if name.lower().startswith("i"):
            return _request(real, received)
        received.arrive(given["status"])
        return real

    return call


def _send_and_receive(name: str) -> Callable:
    plain = getattr(PLAIN, name)

    @functools.wraps(plain)
    def call(*args, **kwargs):
        given = _given(plain, args, kwargs)
        comm, message, dest, tag, _, source, received_tag, status = given.values()
        received = Received(comm, source, received_tag)
        sent = Sent(comm, dest, tag, _pickled(message) if name.islower() else comm._bytes(message))
        result = plain(*given.values())
        sent.arrive()
        received.arrive(status)
        return result

    return call


def _collective(name: str, kind: str) -> Callable:
    """A collective: of pickled objects if its name has no capital, and nonblocking if its name begins with I."""
    plain = getattr(PLAIN, name)

    @functools.wraps(plain)
    def call(self, *args, **kwargs):
        given = [*args, *kwargs.values()]
        nbytes = self._bytes(*given)
        if name.islower():
            nbytes = _pickled(given[0]) if given else 0
        if name in ("gather", "allgather"):
            nbytes *= self.size
        collective = EmulatedCollective(self, kind, nbytes)
        result = plain(self, *args, **kwargs)
        if name.startswith("I"):
            return _request(result, collective)
        collective.arrive()
        return result

    return call


def _new(name: str) -> Callable:
    plain = getattr(PLAIN, name)

    @functools.wraps(plain)
    def call(self, *args, **kwargs):
        comm = plain(self, *args, **kwargs)
        return EmulatedComm.over(comm, self.places, self.world_group) if comm != MPI.COMM_NULL else comm

    return call


def _refused(name: str) -> Callable:
    def call(self, *args, **kwargs):
        raise InputError(f"{name}: its communicator can't be emulated; use Split, and compute the neighbors' ranks")

    return call


for _name in SENDS:
    setattr(EmulatedComm, _name, _timed(_send(_name)))
for _name in ("Recv", "Irecv", "recv", "irecv"):
    setattr(EmulatedComm, _name, _timed(_receive(_name)))
for _name in ("Sendrecv", "sendrecv"):
    setattr(EmulatedComm, _name, _timed(_send_and_receive(_name)))
for _name, _kind in (UPPER | {f"I{_name.lower()}": _kind for _name, _kind in UPPER.items()} | KINDS).items():
    if hasattr(PLAIN, _name):
        setattr(EmulatedComm, _name, _timed(_collective(_name, _kind)))
for _name in NEW:
    setattr(EmulatedComm, _name, _timed(_new(_name)))
for _name in REFUSED:
    setattr(EmulatedComm, _name, _refused(_name))
for _name in ("Wait", "wait", "Test", "test"):
    setattr(EmulatedRequest, _name, _timed(_completed(_name)))
