"""The ring allreduce and its two halves, which ZeRO uses separately (Patarasuk and Yuan 2009, section 3).

01_mpi_basics has the learner write a ring allreduce, and later notebooks run this one. Between the halves, a rank holds
only the sums of its own part, so it can update just that part: that is ZeRO's idea. All three functions need nothing
but `Sendrecv`, so they run on MPI and on a CountingComm alike. A part has n / p elements.
"""

import numpy as np

from workshop_lib.errors import InputError
from workshop_lib.training.data.shard import parts


def part(n: int, rank: int, size: int) -> slice:
    """Return the slice of `n` elements that is `rank`'s part, when all parts must have the same length.

    Raises InputError when `size` does not divide `n`.
    """
    if n % size:
        raise InputError(f"{n} elements do not divide by {size} ranks: pad them with {-n % size} zeros first.")
    return parts(n, size)[rank]


def reduce_scatter(comm, array: np.ndarray) -> np.ndarray:
    """Return this rank's part of the sum of `array` [n] over ranks, as a new array [n / p]; `array` stays as it is.

    All ranks call it, and it blocks. Each rank sends p - 1 messages, in total (p - 1) / p of the bytes of `array`, in
    p - 1 rounds. Raises InputError when p does not divide n.
    """
    right, left = _neighbors(comm)
    total = array[part(len(array), left, comm.size)].copy()  # this sum goes once around and ends at its owner
    for step in range(2, comm.size + 1):
        arriving = np.empty_like(total)
        comm.Sendrecv(total, right, recvbuf=arriving, source=left)
        total = arriving + array[part(len(array), (comm.rank - step) % comm.size, comm.size)]
    return total


def allgather(comm, array: np.ndarray) -> None:
    """Fill `array` [n], in place, with every rank's own part of it. Parts may differ in length: p need not divide n.

    All ranks call it, and it blocks. Each rank sends p - 1 messages, in total (p - 1) / p of the bytes of `array`, in
    p - 1 rounds.
    """
    right, left = _neighbors(comm)
    cut = parts(len(array), comm.size)
    for step in range(comm.size - 1):
        going = cut[(comm.rank - step) % comm.size]
        coming = cut[(comm.rank - step - 1) % comm.size]
        comm.Sendrecv(array[going], right, recvbuf=array[coming], source=left)


def allreduce(comm, array: np.ndarray) -> None:
    """Replace `array` by its sum over ranks: a reduce-scatter in place, then an allgather.

    All ranks call it, and it blocks. Each step passes one part to the right neighbor, so each rank sends 2 (p - 1)
    messages. It sends every part twice, except its own and the next rank's, which it sends once: in total 2 (p - 1) / p
    of the bytes of `array` if p divides n. Besides `array`, it needs memory for one part.
    """
    right, left = _neighbors(comm)
    cut = parts(len(array), comm.size)
    arriving = np.empty(-(-len(array) // comm.size), array.dtype)
    for step in range(1, comm.size):
        going, place = (array[cut[(comm.rank - step - more) % comm.size]] for more in (0, 1))
        incoming = arriving[: len(place)]
        comm.Sendrecv(going, right, recvbuf=incoming, source=left)
        place += incoming
    allgather(comm, array)


def _neighbors(comm) -> tuple[int, int]:
    """Return the ranks to the right and to the left."""
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
