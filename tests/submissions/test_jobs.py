"""The scripts train for real on a stand-in for their machine; tests/slurm submits them to a real scheduler, too."""

import json
import os
import re
import shutil
import signal
import time
import urllib.error
import urllib.request

import pytest
from submissions.stand_in import JOB, StandIn, here

from workshop_lib.paths import BUILD
from workshop_lib.results import records


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


def answers(address: str, limit_s: float = 60.0) -> dict:
    """What JupyterLab says at an address, once it listens."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.mark.exhaustive
def test_lab_answers_whoever_has_its_token(tmp_path, results):
    results("perlmutter")
    job = StandIn("perlmutter", tmp_path)
    process = job.start("lab.sh", WORKSHOP_JOB_PORT="18642", **here(1, ""))
    try:
        deadline = time.monotonic() + 150
        while not (found := re.search(r"http://\S+:(\d+)/lab\S*\?token=(\w{48})", job.output_file.read_text())):
            assert process.poll() is None and time.monotonic() < deadline, job.output_file.read_text()
            time.sleep(0.1)
        host = os.uname().nodename
        assert f"ssh -L 18642:{host}:18642 USER@perlmutter.nersc.gov" in job.output_file.read_text()
        for name in (host, "localhost"):  # as seen from the login node, and through the tunnel
            assert "kernels" in answers(f"http://{name}:{found[1]}/api/status?token={found[2]}")
        first = answers(f"http://localhost:{found[1]}/api/contents/00_start_here.ipynb?content=0&token={found[2]}")
        assert first["type"] == "notebook", "it opens where `make lab` does"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            answers(f"http://{host}:{found[1]}/api/status")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
