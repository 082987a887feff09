"""Four allreduce algorithms built from sends and receives, which 08c_forecasting times and explains.

They run on MPI and on a CountingComm alike. Every rank calls the same algorithm with its `array`, one-dimensional and
contiguous. The call blocks, and afterwards every rank's `array` holds the sum, the same to the last bit. For p ranks, q
the largest power of two up to p, and arrays of n bytes:

| | messages of the busiest rank | bytes it sends | rounds |
|---|---|---|---|
| naive | p - 1 | (p - 1) n | 2 (p - 1) |
| recursive doubling | log2 q (+ 1) | log2 q n (+ n) | log2 q (+ 2) |
| ring | 2 (p - 1) | 2 (p - 1)/p n | 2 (p - 1) |
| rabenseifner | 2 log2 q (+ 1) | 2 (q - 1)/q n (+ n) | 2 log2 q (+ 2) |

The terms in brackets apply when p is not a power of two: the p - q extra ranks first send their arrays to other ranks,
and get the sum at the end. No allreduce can send less than 2 (p - 1)/p n bytes (Patarasuk and Yuan 2009), and none can
take fewer rounds than log2 p. The ring saves bytes but takes more rounds, and recursive doubling saves rounds but sends
more bytes; Rabenseifner's algorithm comes within a factor of two of both limits. The ring is in collectives/ring.py.
Sources: Thakur, Rabenseifner and Gropp 2005, section 4.5; Patarasuk and Yuan 2009, section 3.
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

    def exchange(ranks: int) -> None:
        arriving = np.empty_like(array)
        for distance in _powers_below(ranks):
            partner = comm.rank ^ distance
            comm.Sendrecv(array, partner, recvbuf=arriving, source=partner)
            array[:] += arriving

    _on_a_power_of_two(comm, array, exchange)


def rabenseifner(comm, array: np.ndarray) -> None:
    """A reduce-scatter by halving, then an allgather by doubling.

    In each step of the first phase, two partners split the block that they are still responsible for, and each adds up
    its half: n/2 bytes, n/4, …, until each rank has the sum of one of q parts. The second phase makes the same
    exchanges in reverse order. It takes few rounds and sends few bytes.
    """

    def exchange(ranks: int) -> None:
        cut = parts(len(array), ranks)
        arriving = np.empty(-(-len(array) // 2), array.dtype)

        def block(rank: int, width: int) -> np.ndarray:
            """The block of `width` parts that contains the part of `rank`."""
            first = rank // width * width
            return array[cut[first].start : cut[first + width - 1].stop]

        for distance in reversed(_powers_below(ranks)):
            partner = comm.rank ^ distance
            place = block(comm.rank, distance)
            incoming = arriving[: len(place)]
            comm.Sendrecv(block(partner, distance), partner, recvbuf=incoming, source=partner)
            place += incoming
        for distance in _powers_below(ranks):
            partner = comm.rank ^ distance
            comm.Sendrecv(block(comm.rank, distance), partner, recvbuf=block(partner, distance), source=partner)

    _on_a_power_of_two(comm, array, exchange)


# Keys: the names of the algorithms in cost_model.py.
ALGORITHMS: dict[str, Callable[..., None]] = {
    "naive": naive,
    "recursive doubling": recursive_doubling,
    "ring": ring.allreduce,
    "rabenseifner": rabenseifner,
}


def _powers_below(ranks: int) -> list[int]:
    """1, 2, 4, …, ranks / 2, where `ranks` is a power of two."""
    return [2**k for k in range(ranks.bit_length() - 1)]


def _on_a_power_of_two(comm, array: np.ndarray, exchange: Callable[[int], None]) -> None:
    """Run `exchange(q)` on the first q ranks, where q is the largest power of two up to the number of ranks.

    Each of the remaining ranks sends its array to a helper among the first q, which sends the sum back.
    """
    q = 2 ** (comm.size.bit_length() - 1)
    if comm.rank >= q:
        comm.Send(array, comm.rank - q)
        comm.Recv(array, comm.rank - q)
        return
    helps = comm.rank + q < comm.size
    if helps:
        arriving = np.empty_like(array)
        comm.Recv(arriving, comm.rank + q)
        array += arriving
    exchange(q)
    if helps:
        comm.Send(array, comm.rank + q)
