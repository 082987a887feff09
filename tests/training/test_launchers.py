"""The same training code under every launcher."""

import json
import os
import sys

import pytest
from training.launching import TRAIN_RUNS, rank_environment, read_outcomes, run_bounded, run_training

from workshop_lib import ranks
from workshop_lib.machine import world
from workshop_lib.training.options import TrainOptions

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("only_small_mnist")]
OPTIONS = {"max_steps": 6}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def runs_file(folder, *backends):
    folder.mkdir(exist_ok=True)
    runs = [{"name": name, "options": OPTIONS | {"backend": name}} for name in backends]
    (folder / "runs.json").write_text(json.dumps(runs))
    return runs


@pytest.fixture(scope="module")
def under_mpiexec(tmp_path_factory, only_small_mnist):
    folder = tmp_path_factory.mktemp("mpiexec")
    # Twice each, as in engines, where a process trains many times.
    runs = runs_file(folder, "mpi", "ddp") + runs_file(folder, "mpi", "ddp")
    return run_training(folder, runs, 2)


def weights(outcomes, backend):
    return outcomes[backend][0]["record"]["weights_sha256"]


def test_mpiexec(under_mpiexec):
    for backend in ("mpi", "ddp"):
        for rank, outcome in enumerate(under_mpiexec[backend]):
            expected = {"rank": rank, "world_size": 2, "local_rank": rank, "local_size": 2}
            assert outcome["world"] == expected | {"launcher": "mpiexec"}


def slurm_environment(rank: int, ranks: int) -> dict[str, str]:
    """What srun sets for each task, without MPI."""
    return rank_environment(
        SLURM_JOB_ID=str(os.getpid()),
        SLURM_STEP_ID="0",
        SLURM_STEP_NUM_TASKS=str(ranks),
        SLURM_STEP_TASKS_PER_NODE=str(ranks),
        SLURM_STEP_NODELIST="localhost",
        SLURM_NTASKS=str(ranks),
        SLURM_PROCID=str(rank),
        SLURM_LOCALID=str(rank),
        SLURM_NODEID="0",
    )


def ranks_of_torchrun(folder):
    return [[*TORCHRUN, "--nproc-per-node", "2", TRAIN_RUNS, folder]], [rank_environment()]


def ranks_of_srun(folder):
    return [[sys.executable, TRAIN_RUNS, folder]] * 2, [slurm_environment(rank, 2) for rank in range(2)]


@pytest.mark.parametrize(("start", "launcher"), [(ranks_of_torchrun, "torchrun"), (ranks_of_srun, "srun")])
def test_ddp_trains_as_under_mpiexec_and_mpi_says_that_it_sees_one_rank(start, launcher, tmp_path, under_mpiexec):
    runs = runs_file(tmp_path, "mpi", "ddp")
    for status, output in run_bounded(*start(tmp_path), 120):
        assert status == 0, output
    outcomes = read_outcomes(tmp_path, runs, 2)
    assert outcomes["ddp"][1]["world"]["launcher"] == launcher
    assert weights(outcomes, "ddp") == weights(under_mpiexec, "ddp")
    for rank in outcomes["mpi"]:
        assert f"{launcher} started 2 ranks, but MPI sees 1" in rank["error"]
        assert "choose --backend ddp" in rank["error"]


def test_ranks_of_a_notebook_inside_another_world_have_their_own(monkeypatch, nothing_left):
    around = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "n1", "MASTER_PORT": "1", "LOCAL_RANK": "3"}
    for name, value in (around | {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4", "PMI_SIZE": "1"}).items():
        monkeypatch.setenv(name, value)
    ranks.stop()  # ranks that another test has left don't know these variables
    team = ranks.start(2)
    try:
        assert team.run(world.left_over, show=False) == [[], []]
        record = team.train(TrainOptions(backend="ddp", **OPTIONS), show=False)
        assert record["what"]["world_size"] == 2
        neutralized = " ".join(record["where"]["neutralized"])
        assert "RANK, TORCHELASTIC_RUN_ID, WORLD_SIZE ignored: another launcher's world" in neutralized
    finally:
        ranks.stop()


def test_missing_peer_ends_at_the_timeout(tmp_path):
    runs_file(tmp_path, "ddp")
    environment = slurm_environment(0, 2) | {"WORKSHOP_GLOO_TIMEOUT_S": "3"}
    [(status, output)] = run_bounded([[sys.executable, TRAIN_RUNS, tmp_path]], [environment], 60)
    assert status == 0, output
    [outcome] = read_outcomes(tmp_path, [{"name": "ddp"}], 1)["ddp"]
    assert "the 2 ranks did not all meet within 3 s" in outcome["error"] and "1/2" in outcome["error"], outcome
    assert outcome["error"].endswith("set WORKSHOP_GLOO_TIMEOUT_S to more seconds.")
