"""Which launcher started this process, from the variables that each sets."""

import pytest
import torch

from workshop_lib.training import world

STEP = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
STEP["SLURM_STEP_TASKS_PER_NODE"] = "2(x2)"


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
    ],
)
def test_who_started_this_process(environment, launcher, world_size):
    found = world.detect(environment)
    assert (found.launcher, found.world_size) == (launcher, world_size)


def test_the_place_among_the_tasks_of_srun():
    assert world.detect(STEP) == world.World(3, 4, 1, "srun", 2)
    with pytest.raises(world.LaunchError, match="SLURM_STEP_TASKS_PER_NODE is 'two', but srun writes it as in 4"):
        world.detect(STEP | {"SLURM_STEP_TASKS_PER_NODE": "two"})


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
