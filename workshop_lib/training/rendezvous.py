"""How the ranks of a torch process group find each other, under every launcher."""

import atexit
import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workshop_lib.errors import InputError
from workshop_lib.machine import environment
from workshop_lib.machine.forks import unless_forked
from workshop_lib.machine.world import GPU_COLLECTIVES, LaunchError, World, loopback

TIMEOUT = "WORKSHOP_GLOO_TIMEOUT_S"
TIMEOUT_S = 60.0
# Ranks on many nodes that import PyTorch from one shared disk start minutes apart.
TIMEOUT_SEVERAL_HOSTS_S = 600.0
GLOO_LINGER_S = 0.3
# These ports lie below the range from which Linux picks ports itself (32768 and up).
SLURM_FIRST_PORT = 20000
SLURM_PORTS = 12000


def join_process_group(world: World, device: torch.device) -> dist.ProcessGroup:
    """Return this process's process group, which the first call joins and the process keeps until it ends.

    All ranks call it, and it blocks. A rank or a collective whose peers are missing raises an error after
    WORKSHOP_GLOO_TIMEOUT_S seconds instead of waiting forever: by default 60, and 600 if the ranks are on several
    hosts. Raises LaunchError if not all ranks meet in that time, if this process already belongs to a different group,
    or if GLOO_SOCKET_IFNAME names a missing network interface.
    """
    kind = "gloo"
    if device.type in GPU_COLLECTIVES and torch.get_device_module(device).device_count() >= world.local_size:
        kind = GPU_COLLECTIVES[device.type]  # each rank of this host has a GPU of its own
    if dist.is_initialized():
        _check_same_group(world, kind)
        return dist.distributed_c10d._get_default_group()
    if world.local_size == world.world_size:
        # Stay on this host, so that a laptop works without a network or with a strange host name.
        environment.clean(one_host=True)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    elif (names := os.environ.get("GLOO_SOCKET_IFNAME")) and environment.is_missing_interface(names):
        here = ", ".join(name for _, name in socket.if_nameindex())
        raise LaunchError(
            f"GLOO_SOCKET_IFNAME is {names!r}, but {socket.gethostname()} has no such network interface: "
            f"unset it, or choose one of {here}."
        )
    timeout = patience(world)
    # Linger at exit: one of gloo's threads may still have to release the last message's tensor, which takes the
    # interpreter's lock. If the interpreter had ended by then, the process would abort.
    if kind == "gloo":
        atexit.register(unless_forked(time.sleep, GLOO_LINGER_S))
    try:
        if world.launcher == "torchrun":
            dist.init_process_group(kind, init_method="env://", timeout=timeout)
        else:
            store = _store(world, timeout)
            dist.init_process_group(kind, store=store, rank=world.rank, world_size=world.world_size, timeout=timeout)
    except (dist.DistStoreError, dist.DistNetworkError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        if "EADDRINUSE" in reason:
            raise LaunchError(
                f"the port at which the ranks should meet is taken by another program ({reason}): set MASTER_ADDR to "
                "rank 0's host and MASTER_PORT to a free port there, the same on all ranks."
            ) from error
        if "timed out" not in str(error).lower():
            raise
        raise LaunchError(
            f"the {world.world_size} ranks did not all meet within {timeout.total_seconds():g} s ({reason}). If a rank "
            f"has failed, its own message says why. If ranks only start slowly, set {TIMEOUT} to more seconds."
        ) from error
    return dist.distributed_c10d._get_default_group()


def join_over_mpi(world: World, device: torch.device) -> dist.ProcessGroup:
    """Return the group that sends over MPI, in addition to the default group. All ranks call it.

    A process creates this group only once. A collective whose peer is missing raises an error after as many seconds as
    with gloo. Raises InputError on a GPU, and LaunchError if MPI does not see the ranks.
    """
    if device.type != "cpu":
        raise InputError(f"comm 'mpi': it sends tensors from CPUs, and this run is on {device.type}; add --device cpu")
    world.mpi_comm()
    from workshop_lib.training import torch_mpi  # imported here because ranks without MPI use this file too

    return torch_mpi.joined(patience(world))


def patience(world: World) -> timedelta:
    default_s = TIMEOUT_S if world.local_size == world.world_size else TIMEOUT_SEVERAL_HOSTS_S
    return timedelta(seconds=float(os.environ.get(TIMEOUT, default_s)))


def _check_same_group(world: World, kind: str) -> None:
    joined = (dist.get_rank(), dist.get_world_size(), dist.get_backend())
    if joined != (world.rank, world.world_size, kind):
        raise LaunchError(
            f"this process is rank {joined[0]} of a {joined[2]} group of {joined[1]}, but is asked "
            f"to be rank {world.rank} of a {kind} group of {world.world_size}: restart the ranks."
        )


def _store(world: World, timeout: timedelta) -> dist.Store:
    if world.world_size == 1:
        return dist.HashStore()
    if world.launcher == "srun":
        host, port = _address(world)
        return dist.TCPStore(host, port, world.world_size, world.rank == 0, timeout)
    # Rank 0 takes any free port and sends its number to the other ranks over MPI, so nobody has to choose one.
    host = "127.0.0.1" if world.local_size == world.world_size else socket.gethostname()
    store = None
    if world.rank == 0:
        store = dist.TCPStore(host, 0, world.world_size, is_master=True, timeout=timeout, wait_for_workers=False)
    host, port = world.mpi_comm().bcast((host, store.port) if store else None, root=0)
    return store or dist.TCPStore(host, port, world.world_size, False, timeout)


def _address(world: World) -> tuple[str, int]:
    """Return MASTER_ADDR and MASTER_PORT if both are set; otherwise rank 0's host and a port.

    That port is computed from the numbers of the job and the step, because without MPI rank 0 cannot tell the other
    ranks which port is free.
    """
    env = os.environ
    if "MASTER_ADDR" in env and "MASTER_PORT" in env:
        return env["MASTER_ADDR"], int(env["MASTER_PORT"])
    job = int(env.get("SLURM_JOB_ID", 0))
    step = int(env.get("SLURM_STEP_ID", 0))
    port = SLURM_FIRST_PORT + (31 * job + step) % SLURM_PORTS
    if world.local_size == world.world_size:
        return "127.0.0.1", port
    import hostlist  # only Slurm's ranks on several nodes need it

    return hostlist.expand_hostlist(env["SLURM_STEP_NODELIST"])[0], port
