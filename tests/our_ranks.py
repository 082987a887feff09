"""The processes of this test run's ranks: not those of a notebook that runs beside the tests."""

import os
import uuid

import psutil

from workshop_lib.ranks import processes

TEST_RUN = "WORKSHOP_TEST_RUN"
os.environ.setdefault(TEST_RUN, uuid.uuid4().hex)  # inherited by all that the tests start


def our_ranks() -> list[psutil.Process]:
    """Those that still live."""
    ours = []
    for process, _ in processes.marked():
        try:
            if process.environ().get(TEST_RUN) == os.environ[TEST_RUN]:
                ours.append(process)
        except psutil.Error:
            continue
    return ours
