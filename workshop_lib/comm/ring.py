"""The two halves of a ring allreduce, as ZeRO uses them apart (Patarasuk and Yuan 2009, section 3).

Between them lies what ZeRO is about: a rank that holds the sums of its part alone can update that part alone.
Both need nothing but `Sendrecv`, so they run on MPI and on a CountingComm alike. A part is n / p elements.
"""

import numpy as np


def parts(n: int, size: int) -> list[slice]:
    """`n` elements cut into `size` parts that follow one another; their lengths differ by one at most."""
    return [slice(i * n // size, (i + 1) * n // size) for i in range(size)]


def part(n: int, rank: int, size: int) -> slice:
    """Where `rank`'s part of `n` elements lies, when all parts are to have one length.

    Raises ValueError when `n` does not divide by `size`.
    """
    if n % size:
        raise ValueError(f"{n} elements do not divide by {size} ranks: pad them with {-n % size} zeros first.")
    return parts(n, size)[rank]


def reduce_scatter(comm, array: np.ndarray) -> np.ndarray:
    """The sum over ranks of this rank's part of `array` [n], as a new array [n / p]; `array` stays as it is.

    All ranks call it, and it blocks. Each sends p - 1 messages, together (p - 1) / p of the bytes of `array`,
    in p - 1 rounds. Raises ValueError when n does not divide by p.
    """
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total = array[part(len(array), left, comm.size)].copy()  # goes once around, and ends at its owner
    for step in range(2, comm.size + 1):
        arriving = np.empty_like(total)
        comm.Sendrecv(total, right, recvbuf=arriving, source=left)
        total = arriving + array[part(len(array), (comm.rank - step) % comm.size, comm.size)]
    return total


def allgather(comm, array: np.ndarray) -> None:
    """Fill `array` [n], in place, with every rank's own part of it (`parts`, so n need not divide by p).

    All ranks call it, and it blocks. Each sends p - 1 messages, together (p - 1) / p of the bytes of `array`,
    in p - 1 rounds.
    """
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    cut = parts(len(array), comm.size)
    for step in range(comm.size - 1):
        going, coming = cut[(comm.rank - step) % comm.size], cut[(comm.rank - step - 1) % comm.size]
        comm.Sendrecv(array[going], right, recvbuf=array[coming], source=left)
