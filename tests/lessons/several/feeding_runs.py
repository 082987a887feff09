"""Run on every rank: each way to get rows of a file on the first 1, 2, ... ranks, counted."""

import numpy as np
from mpi4py import MPI

from workshop_lib.errors import WorkshopError
from workshop_lib.lessons.feeding_the_ranks import feeding, readers

WORLD = MPI.COMM_WORLD
ROWS, ROW_BYTES, HEADER = 6_001, 784, 16  # no multiple of 2 or 3


def first_pixels(mine: np.ndarray) -> list[int]:
    """The number that each of these rows carries, so that it shows which they are."""
    return mine.reshape(-1, ROW_BYTES)[:, :4].copy().view("<u4").ravel().tolist()


def refused(call) -> str:
    """The first line of the error, if there is one."""
    try:
        call()
    except WorkshopError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def outcomes(folder):
    """{ranks: {"rows": those of `measure`, "of_ranks": what each got and was refused}}"""
    path = folder / "images.idx"
    if WORLD.rank == 0:
        images = np.random.default_rng(1).integers(0, 256, (ROWS, 28, 28), np.uint8)
        images.reshape(ROWS, -1)[:, :4] = np.arange(ROWS, dtype="<u4").reshape(-1, 1).view(np.uint8)
        feeding.write_idx(path, images)
    WORLD.Barrier()

    found = {}
    for size in range(1, WORLD.size + 1):
        comm = WORLD.Split(0 if WORLD.rank < size else 1)
        if WORLD.rank < size:
            parts = feeding.parts_of(ROWS, ROW_BYTES, HEADER, size)
            no_file = refused(lambda comm=comm, parts=parts: feeding.own_file(comm, path, parts))
            feeding.cut_files(comm, path, parts)
            short = [(offset + ROW_BYTES, nbytes) for offset, nbytes in parts]
            short = refused(lambda comm=comm, short=short: feeding.collective_read(comm, path, short))
            ways = feeding.WAYS | {"readers that scatter": readers.readers_scatter}
            rows_of = {name: first_pixels(way(comm, path, parts)[0]) for name, way in ways.items()}

            def swapped(comm, path, parts):
                return feeding.own_part(comm, path, parts[::-1])

            of_rank = {"rows_of": rows_of, "no_file": no_file, "short": short}
            of_rank["swapped"] = refused(
                lambda comm=comm, parts=parts: feeding.measure(comm, path, parts, 1, {"swapped": swapped})
            )
            rows = feeding.measure(comm, path, parts, repeats=2)
            found[size] = {"rows": rows, "of_ranks": comm.gather(of_rank)}
        comm.Free()
        WORLD.Barrier()
    return found
