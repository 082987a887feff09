"""Horovod's own process management, which is the same for every framework."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from workshop_lib.machine.world import LaunchError, World
from workshop_lib.training.backends.base import Communicator

LOWEST_PRIORITY = 19


class HorovodRanks(Communicator):
    """The ranks of Horovod. `hvd` is horovod.torch or horovod.tensorflow."""

    hvd: ClassVar[ModuleType]

    def __init__(self, world: World, device):
        """Initialize Horovod. All ranks call it. Raises LaunchError if Horovod does not see the same ranks.

        mpi4py initializes MPI first. MPI then stays initialized when Horovod shuts down, and Horovod can start again.
        """
        super().__init__(world, device)
        world.mpi_comm()
        before = _threads()
        self.hvd.init()
        # Horovod's thread polls the other ranks without a pause, inside MPI. Without its own core, it would take half
        # of the computing thread's time. At the lowest priority, it gets the core when the computing thread waits.
        # And each rank's has a core of its own: where Linux puts two of them beside one computing thread, all ranks
        # train at a third of the speed, often for seconds.
        for thread in _threads() - before:
            os.setpriority(os.PRIO_PROCESS, thread, LOWEST_PRIORITY)
            cores = sorted(os.sched_getaffinity(thread))
            os.sched_setaffinity(thread, {cores[world.local_rank % len(cores)]})
        if (self.hvd.rank(), self.hvd.size()) != (world.rank, world.world_size):
            horovod_rank = f"rank {self.hvd.rank()} of {self.hvd.size()}"
            self.hvd.shutdown()
            raise LaunchError(
                f"{world.launcher} started rank {world.rank} of {world.world_size}, but Horovod is {horovod_rank}: "
                "start it with the mpiexec of the MPI that Horovod was built with (workshop doctor names it)."
            )

    def allgather(self, value) -> list:
        return self.hvd.allgather_object(value, name="value")  # the default name is the value's type, which may differ

    def close(self) -> None:
        self.hvd.shutdown()


def _threads() -> set[int]:
    """Return the threads of this process that can have their own priority, which exists only on Linux."""
    return {int(task.name) for task in Path("/proc/self/task").iterdir()} if sys.platform == "linux" else set()
