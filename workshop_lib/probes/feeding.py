"""Rank side of the exercises in 09_feeding_the_ranks.

FILES are (rows, bytes of a row, bytes of the header, ranks), for which `my_bytes` is asked on every rank.
"""

import operator
import threading
import time

import numpy as np

FILES = [(12, 5, 16, 3), (10, 5, 16, 4), (60_000, 784, 16, 7), (8, 3, 0, 1), (2, 784, 16, 4)]
BATCHES = 6
READ_S = 0.005
LATE_S = 0.3  # how long a consumer computes at most, for the next read to begin meanwhile
STILL_S = 0.03  # no read has begun for so long: no more are coming
FAILS_AT = 2


def my_bytes(comm, function) -> dict:
    """{file: what `function` returns for each rank of it}."""
    return {
        (rows, row_bytes, header_bytes, size): [
            _plain(function(rows, row_bytes, header_bytes, rank, size)) for rank in range(size)
        ]
        for rows, row_bytes, header_bytes, size in FILES
    }


def _plain(returned):
    """A pair of whole numbers as such, whatever kind they have; anything else as it is."""
    try:
        return tuple(operator.index(number) for number in returned)
    except TypeError:
        return returned


class Reader:
    """Stands for a storage: `read(i)` takes a while and gives batch i, an array full of i."""

    def __init__(self, n: int, fails_at: int | None = None):
        self.n, self.fails_at = n, fails_at
        self.began = [threading.Event() for _ in range(n)]
        self.reads, self.threads, self.outside = [], set(), []

    def __call__(self, i: int) -> np.ndarray:
        if not 0 <= i < self.n:
            self.outside.append(i)
            raise IndexError(f"there is no batch {i}: they are numbered from 0 to {self.n - 1}")
        self.reads.append(i)
        self.threads.add(threading.get_ident())
        self.began[i].set()
        time.sleep(READ_S)
        if i == self.fails_at:
            raise OSError(f"batch {i} cannot be read")
        return np.full(3, i)


def prefetch(comm, function) -> dict:
    """What `function` hands out for several batches, for one, for none, and for one that cannot be read."""
    return {
        "several": _consumed(function, BATCHES),
        "one": _consumed(function, 1),
        "none": _consumed(function, 0),
        "failing": _consumed(function, BATCHES, FAILS_AT),
    }


def _consumed(function, n: int, fails_at: int | None = None) -> dict:
    """One loop over the batches, with pauses in which a prefetching reader gets on with the next ones."""
    read, fact = Reader(n, fails_at), {"got": [], "ahead": [], "overlapped": [], "error": None, "kind": None}
    try:
        returned = function(read, n)
        fact["kind"] = None if hasattr(returned, "__iter__") else repr(returned)
        for batch in returned if fact["kind"] is None else ():
            if not isinstance(batch, np.ndarray):
                fact["kind"] = f"a {type(batch).__name__}"
                break
            fact["got"].append(int(batch.flat[0]) if batch.size else None)
            _compute(read, fact)
            if len(fact["got"]) > n:
                break
    except NotImplementedError:
        raise
    except Exception as error:
        fact["error"] = f"{type(error).__name__}: {error}"
    own = threading.get_ident()
    return fact | {"reads": read.reads, "outside": read.outside, "same_thread": own in read.threads}


def _compute(read: Reader, fact: dict) -> None:
    """Until the next read has begun, or LATE_S have passed; then until no more begin."""
    coming = len(fact["got"])
    if coming < read.n and all(fact["overlapped"]):
        fact["overlapped"].append(read.began[coming].wait(LATE_S))
    begun = -1
    while begun < len(read.reads):
        begun = len(read.reads)
        time.sleep(STILL_S)
    fact["ahead"].append(begun - coming)
