"""Which rank this process is, whoever started it, and which device it computes on."""

import os
import re
import socket
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from workshop_lib.errors import InputError, WorkshopError
from workshop_lib.machine import environment

# The library that carries PyTorch's collectives between GPUs, by PyTorch's name for their kind.
GPU_COLLECTIVES = {"cuda": "nccl", "xpu": "xccl"}
# Variables in which Open MPI, MPICH and Cray PALS say how many processes mpiexec started.
MPIEXEC_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_SIZE")
# The variable with which horovodrun says how many it started. Such processes meet over MPI or not at all.
HOROVODRUN_SIZE = "HOROVOD_SIZE"
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Variables with which launchers written for PyTorch and Horovod describe a world to its processes.
OF_A_WORLD = re.compile(
    r"(LOCAL_|GROUP_|ROLE_|CROSS_)?(RANK|WORLD_SIZE)|(LOCAL|CROSS)_SIZE|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.+"
    r"|HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|GLOO_RENDEZVOUS_(ADDR|PORT))"
)


class LaunchError(WorkshopError, RuntimeError):
    """The way this process was started does not fit what it is asked to do."""


@dataclass(frozen=True)
class World:
    """The place of this process among the ranks of a run. World() is a single process.

    local_rank and local_size count the ranks of this host only.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    launcher: str = "single"
    local_size: int = 1

    def mpi_comm(self):
        """Return MPI.COMM_WORLD. Raises LaunchError if MPI does not see as many ranks as the launcher started."""
        comm = _mpi().COMM_WORLD
        if comm.size != self.world_size:
            raise LaunchError(_mpi_mismatch(self.launcher, self.world_size, comm.size))
        return comm


def detect(env: Mapping[str, str] | None = None) -> World:
    """Return the World of this process, according to the variables that launchers set.

    The launcher is the first one, in the order of `claims`, that started several processes. If none did, it is the
    first that started a single process. Raises LaunchError for several processes of another launcher, and if a launcher
    started several processes but MPI sees several worlds of one rank each, because these ranks would silently train
    independently.
    """
    env = os.environ if env is None else env
    sizes = claims(env)
    several = [launcher for launcher, size in sizes.items() if size > 1]
    launcher = next(iter(several or sizes), "single")
    if not several and ((_number(env, "WORLD_SIZE") or 1) > 1 or (_number(env, "RANK") or 0) > 0):
        given = [name for name in RENDEZVOUS if env.get(name)]
        raise LaunchError(
            f"the environment describes a world of several processes ({', '.join(given)}), but neither torchrun, "
            "mpiexec nor srun started this one: start it with one of them. If there is no such world: unset "
            f"{' '.join(given)}."
        )
    match launcher:
        case "single":
            return World()
        case "engines":
            return _from_mpi("engines")
        case "torchrun":
            rank, size, local_rank, local_size = (int(env[name]) for name in TORCHRUN)
            return World(rank, size, local_rank, "torchrun", local_size)
        case "srun":
            return _from_slurm(env, sizes["srun"])
    return _from_mpi(launcher, sizes[launcher])


def claims(env: Mapping[str, str]) -> dict[str, int]:
    """Return how many processes each launcher says it started, by the launcher's name, in order of precedence.

    1. engines: only `ranks.start()` sets WORKSHOP_LAUNCHER. The number here is always 2; MPI knows the real one.
    2. torchrun: TORCHRUN and TORCHELASTIC_RUN_ID. srun or mpiexec may have started one torchrun per node.
    3. mpiexec: MPIEXEC_SIZES. srun may have started the processes that start mpiexec's ranks, one per node.
    4. srun: SLURM_STEP_NUM_TASKS. (SLURM_NTASKS is also set in a batch script, which is one process.)
    5. horovodrun: HOROVODRUN_SIZE.

    Processes inherit variables, so some may be left over from a shell or a job around this one. Leftovers usually
    describe a single process, which is why `detect` prefers a launcher that started several.
    """
    if env.get("WORKSHOP_LAUNCHER") == "engines":
        return {"engines": 2}
    by_torchrun = env.get("TORCHELASTIC_RUN_ID") and all(env.get(name) for name in TORCHRUN)
    found = {
        "torchrun": _number(env, "WORLD_SIZE") if by_torchrun else None,
        "mpiexec": _mpiexec_size(env),
        "srun": _srun_size(env),
        "horovodrun": _number(env, HOROVODRUN_SIZE),
    }
    return {launcher: size for launcher, size in found.items() if size}


def threads(env: MutableMapping[str, str] = os.environ) -> int:
    """Return this rank's number of threads: OMP_NUM_THREADS, or 1.

    If the variable is missing although the job planned more for each task, a sentence on each node and the record
    say so: `sbatch --export=NONE` strips what srun starts.
    """
    planned = env.get("SLURM_CPUS_PER_TASK", "1")
    if "OMP_NUM_THREADS" not in env and planned != "1":
        sentence = (
            f"OMP_NUM_THREADS isn't set for this rank: it computes with 1 thread, and its task has {planned} CPUs"
        )
        environment.note(env, sentence)
        if env.get("SLURM_LOCALID", "0") == "0":
            print(f"{sentence}.", file=sys.stderr)
    return int(env.get("OMP_NUM_THREADS", "1"))


def left_over(env: Mapping[str, str] = os.environ) -> list[str]:
    """Return the sorted names of the variables that describe a world to PyTorch or Horovod."""
    return sorted(name for name in env if OF_A_WORLD.fullmatch(name))


def forget_other_worlds(env: MutableMapping[str, str] = os.environ) -> None:
    """Unset the `left_over` variables in a rank that MPI knows.

    The world they describe belongs to a shell or a job around this rank.
    """
    names = left_over(env)
    for name in names:
        del env[name]
    if names:
        environment.note(env, f"{', '.join(names)} ignored: another launcher's world, in which these ranks are not")


def _number(env: Mapping[str, str], name: str) -> int | None:
    """Return this variable as a whole number, or None if it is unset or empty. Raises LaunchError for other text."""
    text = env.get(name, "")
    if not text:
        return None
    if not text.isdecimal():
        raise LaunchError(f"{name} is {text!r}, where launchers write a whole number: unset {name}.")
    return int(text)


def _mpiexec_size(env: Mapping[str, str]) -> int | None:
    sizes = {name: _number(env, name) or 0 for name in MPIEXEC_SIZES}
    srun_size = _srun_size(env)
    # srun's MPI plug-ins also set PMI_SIZE, to srun's own number. Open MPI's variable comes only from its mpiexec.
    of_mpiexec = [size for name, size in sizes.items() if name == "OMPI_COMM_WORLD_SIZE" or size != srun_size]
    return max(of_mpiexec, default=None)


def _srun_size(env: Mapping[str, str]) -> int | None:
    return _number(env, "SLURM_STEP_NUM_TASKS") if "SLURM_PROCID" in env else None


def _from_mpi(launcher: str, started: int | None = None) -> World:
    comm = _mpi().COMM_WORLD
    if started is not None and comm.size != started:
        raise LaunchError(_mpi_mismatch(launcher, started, comm.size))
    # Compare host names, because Split_type gives a different answer inside containers.
    hosts = comm.allgather(socket.gethostname())
    same_host = [rank for rank, host in enumerate(hosts) if host == hosts[comm.rank]]
    return World(comm.rank, comm.size, same_host.index(comm.rank), launcher, len(same_host))


def _from_slurm(env: Mapping[str, str], world_size: int) -> World:
    import hostlist  # only Slurm's ranks need it

    counts = hostlist.parse_slurm_tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE", str(world_size)))
    local_size = counts[int(env.get("SLURM_NODEID", 0))]
    rank = int(env["SLURM_PROCID"])
    local_rank = int(env.get("SLURM_LOCALID", 0))
    return World(rank, world_size, local_rank, "srun", local_size)


def loopback() -> str:
    """Return the name of the network interface that reaches only this host, as gloo's GLOO_SOCKET_IFNAME takes it."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if re.fullmatch(r"lo\d*", name)), "lo")


def choose_device(name: str, world: World):
    """Return the torch.device of this rank for `name`, which is "cpu", "cuda", "xpu" or "auto".

    "auto" takes the GPU numbered local_rank if every rank on this host can have its own GPU, and the CPU otherwise.
    With "cuda" or "xpu", ranks share the GPUs if there are more ranks than GPUs. Where Slurm gives each rank its own
    GPUs (--gpus-per-task), a rank sees no others. Raises InputError for "cuda" or "xpu" if PyTorch sees no such GPU.
    """
    import torch  # imported here because programs that start ranks use this file too, and must be quick

    gpus = count_gpus(name)
    own = "SLURM_GPUS_PER_TASK" in os.environ and world.launcher == "srun"
    if name == "cpu" or gpus == 0 or (name == "auto" and gpus < world.local_size and not own):
        return torch.device("cpu")
    device = torch.device(gpu_kind(name), world.local_rank % gpus)
    torch.get_device_module(device).set_device(device)
    # Runs are compared down to the last bits, so rule out nondeterministic algorithms and TF32's 10-bit mantissa.
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    return device


def gpu_kind(name: str) -> str:
    """Return PyTorch's name for the GPUs that `name` can mean: "cuda" for NVIDIA's and AMD's, "xpu" for Intel's."""
    import torch  # imported here for the same reason as in choose_device

    if name in GPU_COLLECTIVES:
        return name
    found = torch.accelerator.current_accelerator(check_available=True)
    return found.type if found is not None and found.type in GPU_COLLECTIVES else "cuda"


def count_gpus(name: str) -> int:
    """Return how many GPUs PyTorch sees on this host. Raises InputError if `name` asks for one and there are none."""
    import torch  # imported here for the same reason as in choose_device

    module = torch.get_device_module(gpu_kind(name))
    gpus = module.device_count() if module.is_available() else 0
    if name in GPU_COLLECTIVES and gpus == 0:
        raise InputError(
            f"device {name!r}: this PyTorch sees no GPU; use device 'cpu', or install a PyTorch "
            "built for your GPU (see book/setup.md)"
        )
    return gpus


def _mpi():
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise LaunchError(f"MPI cannot be used here ({error}): run make setup") from error
    return MPI


def _mpi_mismatch(launcher: str, started: int, seen: int) -> str:
    names = {"mpiexec": MPIEXEC_SIZES, "horovodrun": (HOROVODRUN_SIZE,)}.get(launcher, ())
    variables = " ".join(name for name in names if name in os.environ)
    left_over = f"; if no {launcher} started this, unset {variables}" if variables else ""
    return (
        f"{launcher} started {started} ranks, but MPI sees {seen}: start them with the mpiexec of mpi4py's MPI "
        "(workshop doctor names both) or srun --mpi=pmix or --mpi=pmi2, or choose --backend ddp without --comm mpi"
        f"{left_over}."
    )
