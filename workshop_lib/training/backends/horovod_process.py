"""Horovod's own process management, which every framework's Horovod shares."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from workshop_lib.training.backends.base import Communicator
from workshop_lib.training.world import LaunchError, World

LOWEST_PRIORITY = 19


class HorovodRanks(Communicator):
    """The ranks of Horovod. `hvd` is horovod.torch or horovod.tensorflow."""

    hvd: ClassVar[ModuleType]

    def __init__(self, world: World, device):
        """Initialise Horovod, and see that it knows the same ranks. All ranks call it.

        MPI is initialised by mpi4py first: then it stays when Horovod shuts down, and Horovod can start again.
        """
        super().__init__(world, device)
        world.mpi_comm()
        before = _threads()
        self.hvd.init()
        # Horovod's thread polls the other ranks without rest, in MPI. Without a core of its own it would take
        # half of the time of the thread that computes; when that one waits, it has the core to itself.
        for thread in _threads() - before:
            os.setpriority(os.PRIO_PROCESS, thread, LOWEST_PRIORITY)
        if (self.hvd.rank(), self.hvd.size()) != (world.rank, world.world_size):
            horovod_rank = f"rank {self.hvd.rank()} of {self.hvd.size()}"
            self.hvd.shutdown()
            raise LaunchError(
                f"{world.launcher} started rank {world.rank} of {world.world_size}, but Horovod is {horovod_rank}: "
                "start it with the mpiexec of the MPI that Horovod was built with (workshop doctor names it)."
            )

    def allgather(self, value) -> list:
        return self.hvd.allgather_object(value, name="value")  # else named by its type, which may differ

    def close(self) -> None:
        self.hvd.shutdown()


def _threads() -> set[int]:
    """The threads of this process that can have a priority of their own: on Linux alone."""
    return {int(task.name) for task in Path("/proc/self/task").iterdir()} if sys.platform == "linux" else set()
