"""The scripts train for real on a stand-in for their machine; tests/slurm submits them to a real scheduler, too."""

import shutil

import pytest
from submissions.stand_in import JOB, StandIn, here

from workshop_lib.notebook.results import records
from workshop_lib.paths import BUILD


@pytest.fixture(scope="module")
def small(small_mnist):
    """Options for a run of a second, on few samples."""
    return f"--epochs 1 --train-samples 640 --data-dir {small_mnist}"


@pytest.fixture
def results():
    """The folder of a job's results, by machine; empty before and after the test."""
    folders = []

    def folder(machine: str):
        folders.append(BUILD / f"{machine}-{JOB}")
        shutil.rmtree(folders[-1], ignore_errors=True)
        return folders[-1]

    yield folder
    for each in folders:
        shutil.rmtree(each, ignore_errors=True)


def test_every_backend_trains_and_one_that_fails_does_not_stop_the_others(tmp_path, results, small):
    out = results("polaris")
    job = StandIn("polaris", tmp_path)
    launches = job.launches("train.sh", WORKSHOP_JOB_BACKENDS="nccl:ddp", **here(2, small))
    assert job.returncode == 1
    assert "submissions/polaris: these backends failed: nccl; the output above says why." in job.output
    assert len(launches) == 2 and all("-n 8" in launch.line for launch in launches), "one rank a GPU"
    [record] = records.read(out / "train.jsonl")
    assert (record["what"]["backend"], record["what"]["world_size"], record["what"]["launcher"]) == (
        "ddp",
        2,
        "mpiexec",
    )
    assert record["what"]["binding"] and record["ranks_identical"]


def check_scale(folder, backend, ranks):
    """One run of the published recipe on each number of ranks, and the figure of them."""
    found = sorted(records.read(sorted(folder.glob("scale*.jsonl"))), key=lambda record: record["what"]["world_size"])
    assert [record["what"]["world_size"] for record in found] == ranks
    for what in (record["what"] for record in found):
        assert (what["backend"], what["network"], what["optimizer"]) == (backend, "classic", "sgd")
        assert (what["lr"], what["lr_scaling"], what["warmup_epochs"], what["momentum"]) == (0.01, "linear", 0, 0.5)
    assert (folder / "solution.png").stat().st_size > 10_000


@pytest.mark.timeout(600)
def test_scale_leads_to_its_figure(tmp_path, results, small):
    out = results("polaris")
    job = StandIn("polaris", tmp_path)
    job.run("scale.sh", WORKSHOP_JOB_RANKS="2 3", WORKSHOP_JOB_BACKENDS="mpi", **here(3, f"{small} --device cpu"))
    assert job.returncode == 0, job.output
    check_scale(out, "mpi", [2, 3])
