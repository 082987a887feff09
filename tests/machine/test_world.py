"""Which launcher started this process, from the variables that each sets."""

import re
import socket
import subprocess
import sys

import pytest
import torch
from training.launching import rank_environment

from workshop_lib.machine import world
from workshop_lib.training import rendezvous

STEP = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
STEP["SLURM_STEP_TASKS_PER_NODE"] = "2(x2)"
HERE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
NODES = HERE | {"MASTER_ADDR": "n1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
TORCHRUN = NODES | {"TORCHELASTIC_RUN_ID": "none"}
ONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def mpi_agrees(monkeypatch):
    def as_told(launcher, started=None):
        return world.World(0, started, 0, launcher)

    monkeypatch.setattr(world, "_from_mpi", as_told)


@pytest.mark.parametrize(
    ("environment", "launcher", "world_size"),
    [
        ({}, "single", 1),
        (STEP, "srun", 4),
        (STEP | {"PMI_SIZE": "4"}, "srun", 4),  # srun's own PMI plug-in
        (STEP | {"PMI_SIZE": "16"}, "mpiexec", 16),  # MPICH's mpiexec: srun started one proxy a node
        (STEP | {"OMPI_COMM_WORLD_SIZE": "4"}, "mpiexec", 4),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, "single", 1),  # a batch script without srun
        ({"PALS_SIZE": "8"}, "mpiexec", 8),
        *((STEP | {name: "1"}, "srun", 4) for name in world.MPIEXEC_SIZES),  # left over from around the step
        ({"OMPI_COMM_WORLD_SIZE": "1", "PMI_SIZE": "4"}, "mpiexec", 4),
        (TORCHRUN, "torchrun", 2),
        (STEP | TORCHRUN, "torchrun", 2),  # srun started one torchrun per node
        ({"TORCHELASTIC_RUN_ID": "none"}, "single", 1),
        (STEP | HERE, "srun", 4),
        (ONE, "single", 1),
        (STEP | ONE | {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "srun", 4),
        ({"OMPI_COMM_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, "mpiexec", 4),  # exported by a job's prolog
        ({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1"}, "horovodrun", 2),
        ({"WORKSHOP_LAUNCHER": "engines", "OMPI_COMM_WORLD_SIZE": "2"} | STEP | TORCHRUN, "engines", None),
    ],
)
def test_who_started_this_process(environment, launcher, world_size):
    found = world.detect(environment)
    assert (found.launcher, found.world_size) == (launcher, world_size)


def test_the_place_among_the_tasks_of_srun():
    assert world.detect(STEP) == world.World(3, 4, 1, "srun", 2)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (HERE, "several processes .RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT., but .*: unset RANK WORLD_SIZE MASTER"),
        (NODES | {"OMPI_COMM_WORLD_SIZE": "1"}, "neither torchrun, mpiexec nor srun started this one: start it with"),
        ({"RANK": "1"}, "unset RANK.$"),
        ({"WORLD_SIZE": "two"}, "^WORLD_SIZE is 'two', where launchers write a whole number: unset WORLD_SIZE"),
    ],
)
def test_several_processes_of_another_launcher_are_refused(environment, sentence):
    with pytest.raises(world.LaunchError, match=sentence):
        world.detect(environment)


@pytest.mark.parametrize("variable", ["HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_processes_that_mpi_cannot_join_are_refused(variable):
    """In a process of its own, which may start MPI."""
    code = "from workshop_lib.machine.world import detect; detect()"
    environment = rank_environment(**{variable: "2"})
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    last = ran.stderr.strip().splitlines()[-1]
    assert re.search(rf"LaunchError: \w+ started 2 ranks, but MPI sees 1: .*mpiexec.*unset {variable}\.$", last), last


@pytest.mark.parametrize(
    ("launcher", "environment", "device"),
    [
        ("srun", {"SLURM_GPUS_PER_TASK": "1"}, "cuda:0"),  # Slurm hides the others' GPUs
        ("srun", {}, "cpu"),  # two ranks would share one
        ("mpiexec", {"SLURM_GPUS_PER_TASK": "1"}, "cpu"),  # what mpiexec starts sees what its one task sees
    ],
)
def test_auto_takes_the_one_gpu_that_slurm_gave_this_rank(monkeypatch, launcher, environment, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.delenv("SLURM_GPUS_PER_TASK", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(world.choose_device("auto", world.World(1, 4, 1, launcher, 2))) == device


@pytest.mark.parametrize(
    ("name", "tiles", "device", "kind"), [("auto", 2, "xpu:1", "xccl"), ("xpu", 1, "xpu:0", "gloo")]
)
def test_intels_gpus_are_found_and_have_their_own_collectives(monkeypatch, name, tiles, device, kind):
    """On made-up tiles: two ranks on a host with two of them, and with one, which they share."""
    chosen = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("xpu"))
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: tiles)
    monkeypatch.setattr(torch.xpu, "set_device", chosen.append)
    here = world.World(1, 2, 1, "mpiexec", 2)
    found = world.choose_device(name, here)
    assert (str(found), chosen) == (device, [found])
    begun = []
    monkeypatch.setattr(rendezvous.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(rendezvous.dist, "init_process_group", lambda kind, **_: begun.append(kind))
    monkeypatch.setattr(rendezvous, "_store", lambda *_: None)
    monkeypatch.setattr(rendezvous.dist.distributed_c10d, "_get_default_group", lambda: None)
    monkeypatch.setattr(rendezvous.atexit, "register", lambda *_: None)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", world.loopback())
    rendezvous.join_process_group(here, found)
    assert begun == [kind]


def test_ranks_on_several_hosts_have_more_patience(monkeypatch):
    monkeypatch.delenv("WORKSHOP_GLOO_TIMEOUT_S", raising=False)
    here, there = world.World(0, 4, 0, "srun", 4), world.World(0, 8, 0, "srun", 4)
    assert [rendezvous.patience(each).total_seconds() for each in (here, there)] == [60, 600]
    monkeypatch.setenv("WORKSHOP_GLOO_TIMEOUT_S", "7")
    assert rendezvous.patience(there).total_seconds() == 7


def test_a_meeting_point_on_which_another_program_listens_is_a_sentence(monkeypatch):
    monkeypatch.setattr(rendezvous.atexit, "register", lambda *_: None)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", world.loopback())
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as somebodys:
        monkeypatch.setenv("MASTER_PORT", str(somebodys.getsockname()[1]))
        with pytest.raises(world.LaunchError, match="is taken by another program .*set MASTER_ADDR to rank 0's host"):
            rendezvous.join_process_group(world.World(0, 2, 0, "srun", 2), torch.device("cpu"))
