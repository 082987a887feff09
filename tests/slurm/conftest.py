"""One Slurm for all tests of this folder."""

import os

import pytest
from slurm.cluster import CannotRun, Slurm


@pytest.fixture(scope="session")
def slurm():
    """A running Slurm; skips where there can be none, unless WORKSHOP_REQUIRE_CLUSTER=1."""
    try:
        running = Slurm()
        running.start()
    except CannotRun as error:
        if os.environ.get("WORKSHOP_REQUIRE_CLUSTER") == "1":
            raise
        pytest.skip(str(error))
    yield running
    running.stop()
