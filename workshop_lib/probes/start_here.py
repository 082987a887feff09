"""Rank side of the exercises in 00_start_here."""

SHARED = [(n, size) for n in (0, 1, 7, 8, 100) for size in (1, 2, 3, 5)]  # items, ranks


def whoami(comm, function) -> dict:
    """What `function` returns for three communicators, beside what is right: all ranks, the same ranks in
    reverse order, and each rank alone. The last two are there for answers that look past their argument.
    """
    backwards, alone = comm.Split(0, -comm.rank), comm.Split(comm.rank)
    rows = []
    for given in (comm, backwards, alone):
        rows.append({"returned": function(given), "right": (given.rank, given.size)})
    backwards.Free()
    alone.Free()
    return {"rows": rows}


def my_part(comm, function) -> dict:
    """`function(n, rank, size)` for several n and size, as every rank of that size would call it."""
    return {(n, size): [function(n, rank, size) for rank in range(size)] for n, size in SHARED}
