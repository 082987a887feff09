"""Which rank this process is, whoever started it, and which device it computes on."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import hostlist

from workshop_lib.errors import InputError, WorkshopError

# How many processes mpiexec started, in the words of Open MPI, MPICH, Cray PALS and MVAPICH.
MPIEXEC_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_SIZE", "MV2_COMM_WORLD_SIZE")


class LaunchError(WorkshopError, RuntimeError):
    """The way this process was started does not fit what it is asked to do."""


@dataclass(frozen=True)
class World:
    """This process among the ranks of a run; local_rank counts within one host. World() is one process alone."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    launcher: str = "single"
    local_size: int = 1

    def mpi_comm(self):
        """MPI.COMM_WORLD, after checking that MPI sees the ranks that the launcher started."""
        comm = _mpi().COMM_WORLD
        if comm.size != self.world_size:
            raise LaunchError(_mpi_mismatch(self.launcher, self.world_size, comm.size))
        return comm


def detect(env: Mapping[str, str] | None = None) -> World:
    """The World of this process, from the variables that each launcher sets.

    Raises LaunchError when the launcher started several processes that MPI sees as several
    worlds of one, which would silently train independently.
    """
    env = os.environ if env is None else env
    if env.get("WORKSHOP_LAUNCHER") == "engines":
        return _from_mpi("engines")
    if "TORCHELASTIC_RUN_ID" in env:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        rank, size, local_rank, local_size = (int(env[name]) for name in names)
        return World(rank, size, local_rank, "torchrun", local_size)
    # The SLURM_STEP_ variables are srun's own: in a batch script without srun, SLURM_NTASKS
    # is set too, although there is one process. srun's MPI plug-ins also set PMI_SIZE, to the same
    # number; where it differs, mpiexec has had srun start its proxies, one a node, and ranks inherit that.
    started_by_mpiexec = next((int(env[name]) for name in MPIEXEC_SIZES if name in env), None)
    srun_size = int(env.get("SLURM_STEP_NUM_TASKS", 1))
    by_srun = srun_size > 1 and "SLURM_PROCID" in env and "OMPI_COMM_WORLD_SIZE" not in env
    if by_srun and started_by_mpiexec in (None, srun_size):
        return _from_slurm(env, srun_size)
    if started_by_mpiexec is not None:
        return _from_mpi("mpiexec", started_by_mpiexec)
    return World()


def _from_mpi(launcher: str, started: int | None = None) -> World:
    comm = _mpi().COMM_WORLD
    if started is not None and comm.size != started:
        raise LaunchError(_mpi_mismatch(launcher, started, comm.size))
    # By host name and not with Split_type, whose answer differs inside containers.
    hosts = comm.allgather(socket.gethostname())
    same_host = [rank for rank, host in enumerate(hosts) if host == hosts[comm.rank]]
    return World(comm.rank, comm.size, same_host.index(comm.rank), launcher, len(same_host))


def _from_slurm(env: Mapping[str, str], world_size: int) -> World:
    text = env.get("SLURM_STEP_TASKS_PER_NODE", str(world_size))
    try:
        counts = hostlist.parse_slurm_tasks_per_node(text)
    except hostlist.BadHostlist:
        raise LaunchError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}, but srun writes it as in 4(x2),3.") from None
    local_size = counts[int(env.get("SLURM_NODEID", 0))]
    rank, local_rank = int(env["SLURM_PROCID"]), int(env.get("SLURM_LOCALID", 0))
    return World(rank, world_size, local_rank, "srun", local_size)


def loopback() -> str:
    """The network interface that reaches this host alone; for gloo, as GLOO_SOCKET_IFNAME."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if re.fullmatch(r"lo\d*", name)), "lo")


def choose_device(name: str, world: World):
    """The torch.device of this rank, for "cpu", "cuda" or "auto".

    "auto" takes the GPU numbered local_rank when each rank on this host can have its own, and
    else the CPU. "cuda" shares the GPUs when there are more ranks. Where Slurm gives each rank GPUs of
    its own (--gpus-per-task), it sees no others. Raises InputError for "cuda" where there is none.
    """
    import torch  # here, because whoever starts ranks also asks this file, and quickly

    gpus = count_gpus(name)
    own = "SLURM_GPUS_PER_TASK" in os.environ and world.launcher == "srun"
    if name == "cpu" or gpus == 0 or (name == "auto" and gpus < world.local_size and not own):
        return torch.device("cpu")
    device = torch.device("cuda", world.local_rank % gpus)
    torch.cuda.set_device(device)
    # Runs are compared to the last bits: no algorithm that varies, no 10-bit mantissa.
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    return device


def count_gpus(name: str) -> int:
    """GPUs that PyTorch sees on this host. Raises InputError when `name` is "cuda" and there is none."""
    import torch  # for the same reason

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cuda" and gpus == 0:
        raise InputError(
            "device 'cuda': this PyTorch sees no GPU; use device 'cpu', or install a PyTorch "
            "built for your GPU (README)"
        )
    return gpus


def _mpi():
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise LaunchError(f"MPI cannot be used here ({error}): run make setup") from error
    return MPI


def _mpi_mismatch(launcher: str, started: int, seen: int) -> str:
    remedy = {
        "torchrun": "start it with mpiexec instead, or choose --backend ddp without --comm mpi",
        "srun": "start it with srun --mpi=pmix or --mpi=pmi2 as your MPI needs, or with mpiexec, "
        "or choose --backend ddp without --comm mpi",
        "mpiexec": "use the mpiexec of the MPI that mpi4py was built with (workshop doctor names both)",
    }.get(launcher, "restart the ranks")
    return f"{launcher} started {started} ranks, but MPI sees {seen}: {remedy}."
