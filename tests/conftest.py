"""For all tests: settings stay in the checkout, and no process of ours outlives the run."""

import os
import time

import pytest
from our_ranks import our_ranks

from workshop_lib.paths import BUILD
from workshop_lib.ranks import processes

os.environ.setdefault("MPLBACKEND", "Agg")
for variable, folder in (("IPYTHONDIR", "ipython"), ("MPLCONFIGDIR", "matplotlib")):
    os.environ.setdefault(variable, str(BUILD / folder))


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left_behind():
    yield
    deadline = time.monotonic() + 10
    while (left := our_ranks()) and time.monotonic() < deadline:
        time.sleep(0.1)
    processes.kill(left)
    assert not left, f"processes left by the tests: {left}"
