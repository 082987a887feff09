"""The job script of notebook 10, as a learner writes it, on a real Slurm: it trains on both nodes, and goes on."""

import os
import re
import sys
from pathlib import Path

import pytest

from workshop_lib.paths import SCRIPTS
from workshop_lib.ranks.launch import which_mpi

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("restart", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_it_trains_on_both_nodes_and_when_its_time_is_up_it_goes_on_in_the_middle_of_an_epoch(slurm, tmp_path, restart):
    script, output, checkpoint = tmp_path / "job.sh", tmp_path / "job.out", tmp_path / "mnist.pt"
    text = (SCRIPTS / "job.sh").read_text(encoding="utf-8")
    script.write_text(text.replace("../build/10_compute_nodes/mnist.pt", str(checkpoint)), encoding="utf-8")
    images, epochs = (60_000, 3) if restart else (2_000, 1)
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    job = slurm.command(
        *("sbatch", "--parsable", f"--output={output}", f"--chdir={SCRIPTS.parent}", script),
        *("--images", images, "--epochs", epochs, "--save-every", 10_000),
        **which_mpi.environment() | {"PATH": beside, "PYTHONPATH": which_mpi.python_path(), "PYTHONUNBUFFERED": "1"},
    ).strip()
    if restart:
        slurm._wait_for("a checkpoint", checkpoint.exists, 120)
        slurm.command("scancel", "--batch", "--signal=USR1", job)  # what Slurm sends two minutes before the end
        slurm._wait_for("the second start", lambda: "Restarts=1" in slurm.command("scontrol", "show", "job", job), 150)
    state = slurm.wait(job, *ENDED, limit_s=250)
    assert state == "COMPLETED", output.read_text()
    printed = output.read_text()
    seen = [int(number) for number in re.findall(r"^epoch (\d+):", printed, re.MULTILINE)]
    assert seen == list(range(1, epochs + 1)), "each epoch once, over both starts"
    saved = re.findall(r"^epoch \d+, step (\d+): saved", printed, re.MULTILINE)
    assert len(saved) == restart, "when it's told to end, it saves once, in the middle of an epoch"
