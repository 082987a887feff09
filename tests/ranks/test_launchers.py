"""The same training code under every launcher."""

import json
import os
import sys

import pytest
from ranks.launching import TRAIN_RUNS, rank_environment, read_outcomes, run_bounded, run_training

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


@pytest.mark.exhaustive  # a notebook's kernel, and one rank of `workshop train`, are alone, too
def test_alone(tmp_path):
    outcomes = run_training(tmp_path, runs_file(tmp_path, "mpi", "ddp"), 1)
    assert outcomes["ddp"][0]["world"]["launcher"] == "single"
    assert weights(outcomes, "mpi") == weights(outcomes, "ddp")


def test_torchrun(tmp_path, under_mpiexec):
    runs = runs_file(tmp_path, "ddp")
    command = [*TORCHRUN, "--nproc-per-node", "2", TRAIN_RUNS, tmp_path]
    [(status, output)] = run_bounded([command], [rank_environment()], 120)
    assert status == 0, output
    outcomes = read_outcomes(tmp_path, runs, 2)
    assert outcomes["ddp"][1]["world"]["launcher"] == "torchrun"
    assert weights(outcomes, "ddp") == weights(under_mpiexec, "ddp")


@pytest.mark.exhaustive
def test_mpi_under_torchrun_says_what_to_do(tmp_path):
    runs = runs_file(tmp_path, "mpi")
    command = [*TORCHRUN, "--nproc-per-node", "2", TRAIN_RUNS, tmp_path]
    [(status, output)] = run_bounded([command], [rank_environment()], 120)
    assert status == 0, output
    for rank in read_outcomes(tmp_path, runs, 2)["mpi"]:
        assert "torchrun started 2 ranks, but MPI sees 1" in rank["error"]
        assert "choose --backend ddp" in rank["error"]


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


def test_srun_without_mpi(tmp_path, under_mpiexec):
    runs = runs_file(tmp_path, "mpi", "ddp")
    command = [sys.executable, TRAIN_RUNS, tmp_path]
    results = run_bounded([command] * 2, [slurm_environment(rank, 2) for rank in range(2)], 120)
    for status, output in results:
        assert status == 0, output
    outcomes = read_outcomes(tmp_path, runs, 2)
    assert outcomes["ddp"][1]["world"]["launcher"] == "srun"
    assert weights(outcomes, "ddp") == weights(under_mpiexec, "ddp")
    for rank in outcomes["mpi"]:
        assert "srun started 2 ranks, but MPI sees 1" in rank["error"]


def test_missing_peer_ends_at_the_timeout(tmp_path):
    runs_file(tmp_path, "ddp")
    environment = slurm_environment(0, 2) | {"WORKSHOP_GLOO_TIMEOUT_S": "3"}
    [(status, output)] = run_bounded([[sys.executable, TRAIN_RUNS, tmp_path]], [environment], 60)
    assert status == 0, output
    [outcome] = read_outcomes(tmp_path, [{"name": "ddp"}], 1)["ddp"]
    assert "1 of 2" in outcome["error"] or "1/2" in outcome["error"], outcome
