"""Four allreduce algorithms built from sends and receives, which 08c_forecasting times and explains.

They run on MPI and on a CountingComm alike. Every rank calls the same algorithm with its `array`, one-dimensional and
contiguous. The call blocks, and afterwards every rank's `array` holds the sum, the same to the last bit. For p ranks
and arrays of n bytes:

| | messages of the busiest rank | bytes it sends | rounds |
|---|---|---|---|
| naive | p - 1 | (p - 1) n | 2 (p - 1) |
| recursive doubling | log2 p | log2 p n | log2 p |
| ring | 2 (p - 1) | 2 (p - 1)/p n | 2 (p - 1) |
| rabenseifner | 2 log2 p | 2 (p - 1)/p n | 2 log2 p |

Recursive doubling and Rabenseifner's algorithm need a power of two of ranks here. No allreduce can send less than
2 (p - 1)/p n bytes (Patarasuk and Yuan 2009), and none can take fewer rounds than log2 p. The ring is in
collectives/ring.py. Sources: Thakur, Rabenseifner and Gropp 2005, section 4.5; Patarasuk and Yuan 2009, section 3.
"""

from collections.abc import Callable

import numpy as np

from workshop_lib.collectives import ring
from workshop_lib.data.shard import parts


def naive(comm, array: np.ndarray) -> None:
    """Rank 0 receives the p - 1 other arrays, adds them up, and sends the sum to each of the p - 1 other ranks.

    Each of the other ranks sends one message of n bytes, and waits.
    """
    if comm.rank > 0:
        comm.Send(array, 0)
        comm.Recv(array, 0)
        return
    arriving = np.empty_like(array)
    for source in range(1, comm.size):
        comm.Recv(arriving, source)
        array += arriving
    for dest in range(1, comm.size):
        comm.Send(array, dest)


def recursive_doubling(comm, array: np.ndarray) -> None:
    """In step k, each rank exchanges its whole sum with the rank whose number differs in bit k.

    Each step doubles the number of ranks in the sum. It takes few rounds but sends many bytes, so it suits small
    arrays.
    """
    arriving = np.empty_like(array)
    for distance in _powers_below(comm.size):
        partner = comm.rank ^ distance
        comm.Sendrecv(array, partner, recvbuf=arriving, source=partner)
        array += arriving


def rabenseifner(comm, array: np.ndarray) -> None:
    """A reduce-scatter by halving, then an allgather by doubling.

    In each step of the first phase, two partners split the block that they are still responsible for, and each adds up
    its half: n/2 bytes, n/4, …, until each rank has the sum of one of q parts. The second phase makes the same
    exchanges in reverse order. It takes few rounds and sends few bytes.
    """
    cut = parts(len(array), comm.size)
    arriving = np.empty(-(-len(array) // 2), array.dtype)

    def block(rank: int, width: int) -> np.ndarray:
        """The block of `width` parts that contains the part of `rank`."""
        first = rank // width * width
        return array[cut[first].start : cut[first + width - 1].stop]

    for distance in reversed(_powers_below(comm.size)):
        partner = comm.rank ^ distance
        place = block(comm.rank, distance)
        incoming = arriving[: len(place)]
        comm.Sendrecv(block(partner, distance), partner, recvbuf=incoming, source=partner)
        place += incoming
    for distance in _powers_below(comm.size):
        partner = comm.rank ^ distance
        comm.Sendrecv(block(comm.rank, distance), partner, recvbuf=block(partner, distance), source=partner)


def algorithms(ranks: int) -> dict[str, Callable[..., None]]:
    """The algorithms for this number of ranks, by their names in cost_model.py."""
    found: dict[str, Callable[..., None]] = {"naive": naive, "ring": ring.allreduce}
    if ranks.bit_count() == 1:
        found |= {"recursive doubling": recursive_doubling, "rabenseifner": rabenseifner}
    return found


def _powers_below(ranks: int) -> list[int]:
    """1, 2, 4, …, ranks / 2, where `ranks` is a power of two."""
    return [2**k for k in range(ranks.bit_length() - 1)]
