"""Run on every rank: each hand-written allreduce on the first 2, 3, ... ranks, counted.

allreduces.py FILE    rank 0 writes [[algorithm, ranks, elements, outcomes by rank, rounds], ...] as JSON
"""

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from workshop_lib.lessons.forecasting.allreduce import ALGORITHMS
from workshop_lib.lessons.mpi_basics.counting import CountingComm, rounds

WORLD = MPI.COMM_WORLD


def outcome_of(comm, algorithm: str, n: int) -> tuple[dict, list]:
    """What this rank got and sent, and its log."""
    counting = CountingComm(comm)
    exact = (100 ** (comm.rank % 4) * (1 + np.arange(n))).astype(np.int64)
    own = exact.copy()
    ALGORITHMS[algorithm](counting, own)
    right = np.empty_like(exact)
    comm.Allreduce(exact, right)
    sent = counting.bytes_sent, counting.messages_sent
    rounded = np.random.default_rng(comm.rank).random(n, dtype=np.float32)
    near = np.empty_like(rounded)
    comm.Allreduce(rounded, near)
    ALGORITHMS[algorithm](comm, rounded)
    found = {
        "exact": np.array_equal(own, right),
        "near": bool(np.allclose(rounded, near, rtol=1e-5)),
        "bits": rounded.tobytes().hex(),
        "bytes": sent[0],
        "messages": sent[1],
    }
    return found, counting.log


results = []
for size in range(1, WORLD.size + 1):
    comm = WORLD.Split(0 if WORLD.rank < size else 1)
    if WORLD.rank < size:
        for algorithm in ALGORITHMS:
            for n in (2520, 37, 3):  # divides by 1 to 10 ranks; does not; fewer values than ranks
                found, log = outcome_of(comm, algorithm, n)
                results.append([algorithm, size, n, comm.gather(found), rounds(comm.allgather(log))])
    comm.Free()
    WORLD.Barrier()
if WORLD.rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(results))
