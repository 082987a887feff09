"""This test run's ranks, without those of a notebook or of another lane beside these tests; and its stop button."""

import os
import signal
import threading
import time
import uuid

import psutil

from workshop_lib.ranks import processes

TEST_RUN = "WORKSHOP_TEST_RUN"
LANE = os.environ.get("PYTEST_XDIST_WORKER", "")
# Inherited by all that the tests of this lane start.
if not os.environ.get(TEST_RUN, "").endswith(f"/{LANE}"):
    os.environ[TEST_RUN] = f"{uuid.uuid4().hex}/{LANE}"


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


def left_after(limit_s: float) -> list[psutil.Process]:
    """Those that still live when the limit is over; returns as soon as none does."""
    deadline = time.monotonic() + limit_s
    while (left := our_ranks()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def press_stop_after(seconds: float) -> None:
    """Interrupt this process then, as a notebook's stop button does."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
