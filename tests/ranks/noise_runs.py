"""Run on every rank: the averaging that gives norms as well.

noise_runs.py FILE    rank 0 writes what each rank found, {name: [value by rank]}, as JSON
"""

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from workshop_lib.scaling import noise_scale

WORLD = MPI.COMM_WORLD


class Counting:
    """The communicator, with the elements of each Allreduce written down; it has nothing else."""

    def __init__(self):
        self.size, self.elements = WORLD.size, []

    def Allreduce(self, array, total):
        self.elements.append(array.size)
        WORLD.Allreduce(array, total)


def of_rank(rank, dtype):
    return np.random.default_rng(rank).normal(size=7).astype(dtype)


def averaged(dtype):
    comm, own = Counting(), of_rank(WORLD.rank, dtype)
    mean, norms = noise_scale.averaged(own, comm)
    everyone = np.stack([of_rank(rank, dtype) for rank in range(WORLD.size)])
    expected = everyone.mean(axis=0)
    return {
        "dtype": str(mean.dtype),
        "off": float(np.abs(mean - expected).max()),
        "small off": abs(norms.small_sq - float((everyone**2).sum(axis=1).mean())),
        "big off": abs(norms.big_sq - float(expected @ expected)),
        "elements": comm.elements,
        "kept": bool(np.array_equal(own, of_rank(WORLD.rank, dtype))),
    }


found = {dtype: WORLD.gather(averaged(dtype)) for dtype in ("float64", "float32")}
if WORLD.rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(found))
