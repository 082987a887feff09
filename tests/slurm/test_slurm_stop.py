"""`workshop engines stop` on the login node ends the job that holds the ranks."""

import subprocess
import sys

from workshop_lib.paths import ROOT

RANKS_PER_NODE = 1


def test_stop_from_the_login_node_ends_the_job(slurm, held):
    done = subprocess.run(
        slurm.at_login(sys.executable, "-m", "workshop_lib", "engines", "stop"),
        env=slurm.environment | {"PYTHONPATH": str(ROOT), "WORKSHOP_PYTHON": sys.executable},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "were stopped" in done.stdout, done.stdout + done.stderr
    assert slurm.wait(held[0], "COMPLETED", "FAILED", limit_s=15) == "COMPLETED"
