"""Which cores the threads of Horovod may use."""

import os
import sys
from pathlib import Path

import pytest
from needs import needs_backend
from our_ranks import on_every_rank

pytestmark = [
    needs_backend("horovod"),
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives threads cores of their own"),
]


@on_every_rank
def test_threads_of_different_ranks_have_different_cores():
    import torch
    from mpi4py import MPI

    from workshop_lib.machine import world
    from workshop_lib.training.backends.horovod import Horovod

    before = {task.name for task in Path("/proc/self/task").iterdir()}
    backend = Horovod(world.detect(), torch.device("cpu"))
    try:
        threads = {task.name for task in Path("/proc/self/task").iterdir()} - before
        lowest = [int(name) for name in threads if os.getpriority(os.PRIO_PROCESS, int(name)) == 19]
        cores = {core for thread in lowest for core in os.sched_getaffinity(thread)}
        assert lowest and len(cores) == 1
        of_all_ranks = MPI.COMM_WORLD.allgather(cores.pop())
        assert len(set(of_all_ranks)) == min(len(of_all_ranks), len(os.sched_getaffinity(0)))
    finally:
        backend.close()
