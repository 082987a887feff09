"""The project's own job scripts, submitted to a real Slurm; only sizes are overridden, as a user may."""

import sys

import pytest

from workshop_lib.paths import BUILD, ROOT
from workshop_lib.results import records


def completed(slurm, script, output, data, *options, limit_s, **settings) -> str:
    """Submit one of the project's scripts, and wait for its end; returns the job's id."""
    job = slurm.submit(
        ROOT / "submissions" / script,
        "--nodes=2",
        *options,
        f"--output={output}",
        f"--chdir={ROOT}",
        WORKSHOP_NO_MODULES="1",
        WORKSHOP_PYTHON=sys.executable,
        WORKSHOP_JOB_OPTIONS=f"--epochs 1 --data-dir {data}",
        **settings,
    )
    state = slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED", limit_s=limit_s)
    assert state == "COMPLETED", output.read_text()
    return job


@pytest.mark.parametrize("machine", ["slurm", pytest.param("perlmutter", marks=pytest.mark.exhaustive)])
def test_train_trains_on_both_nodes(slurm, machine, tmp_path, small_mnist):
    output = tmp_path / "train.out"
    options = ["--ntasks-per-node=1", "--account=project"]
    job = completed(
        slurm, f"{machine}/train.sh", output, small_mnist, *options, limit_s=150, WORKSHOP_JOB_BACKENDS="mpi:ddp"
    )
    trained = records.read(BUILD / f"{machine}-{job}" / "train.jsonl")
    assert [record["what"]["backend"] for record in trained] == ["mpi", "ddp"]
    for record in trained:
        assert record["what"]["world_size"] == 2
        assert len(set(record["weights_sha256"])) == 1
    assert "on 2 ranks, 2 nodes" in output.read_text()


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_the_scaling_job_leads_to_its_figure(slurm, tmp_path, small_mnist):
    output = tmp_path / "scale.out"
    job = completed(
        slurm, "slurm/scale.sh", output, small_mnist, "--ntasks-per-node=2", limit_s=300, WORKSHOP_JOB_RANKS="2 4"
    )
    folder = BUILD / f"slurm-{job}"
    trained = records.read(folder / "scale.jsonl")
    assert [(record["what"]["world_size"], record["what"]["launcher"]) for record in trained] == [
        (2, "srun"),
        (4, "srun"),
    ]
    assert len({host for record in trained for host in record["where"]["hosts"]}) == (2 if slurm.hosts else 1)
    assert (folder / "solution.png").exists()
