"""One Slurm for all tests of this folder."""

import re
import sys
import time

import pytest
from needs import missing
from our_ranks import left_after
from slurm.cluster import CannotRun, Slurm

from workshop_lib import ranks
from workshop_lib.paths import ROOT

HOLD = '#!/bin/sh\nexec "$WORKSHOP_PYTHON" -m workshop_lib engines start\n'
READY = re.compile(r"ranks\.attach\('(.+)'\)")


@pytest.fixture(scope="session")
def slurm():
    """A running Slurm; skips where there can be none."""
    try:
        running = Slurm()
        running.start()
    except CannotRun as error:
        missing("cluster", str(error))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def held(request, slurm, tmp_path_factory):
    """A job that holds RANKS_PER_NODE ranks on two nodes: its id, and the folder of its first ranks.

    Lost ranks it replaces; when its tests are done, nothing of it may be left.
    """
    ranks.stop()  # what an earlier test has kept isn't left by this job
    folder = tmp_path_factory.mktemp("hold")
    script, output = folder / "hold.sh", folder / "hold.out"
    script.write_text(HOLD)
    job = slurm.submit(
        script,
        "--nodes=2",
        f"--ntasks-per-node={request.module.RANKS_PER_NODE}",
        f"--output={output}",
        f"--chdir={ROOT}",
        WORKSHOP_PYTHON=sys.executable,
        PYTHONPATH=str(ROOT),
    )
    deadline = time.monotonic() + 90
    while not (told := READY.search(output.read_text() if output.exists() else "")):
        state = slurm.state(job)
        assert state in ("PENDING", "RUNNING") and time.monotonic() < deadline, (state, output.read_text())
        time.sleep(0.2)
    yield job, told[1]
    slurm.cancel_all()
    assert not left_after(10)
