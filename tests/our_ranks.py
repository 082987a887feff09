"""This test run's ranks, without those of a notebook or of another lane beside these tests; tests on them; and their
stop button."""

import contextlib
import inspect
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator

import cloudpickle
import psutil
import pytest

from workshop_lib.ranks.launch import agents, processes

TEST_RUN = "WORKSHOP_TEST_RUN"
LANE = os.environ.get("PYTEST_XDIST_WORKER", "")
# Inherited by all that the tests of this lane start.
if not os.environ.get(TEST_RUN, "").endswith(f"/{LANE}"):
    os.environ[TEST_RUN] = f"{uuid.uuid4().hex}/{LANE}"


def our_ranks() -> list[psutil.Process]:
    """Those that still live, without the agent that makes this process's ranks."""
    ours = []
    for process, _ in processes.marked():
        try:
            if process.pid != agents.pid() and process.environ().get(TEST_RUN) == os.environ[TEST_RUN]:
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


@contextlib.contextmanager
def stop_pressed_after(seconds: float) -> Iterator[None]:
    """Interrupt this process then, as a notebook's stop button does, unless what stands inside has ended by then."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def on_every_rank(test):
    """A test that runs on each rank of the fixture `team`, with its asserts; its parameters go there, too."""
    cloudpickle.register_pickle_by_value(sys.modules[test.__module__])  # ranks cannot import the tests

    def run(team, healthy, **parameters):
        team.run(test, *parameters.values(), show=False)

    names = ["team", "healthy", *inspect.signature(test).parameters]
    return _named_like(test, run, names)


def on_the_first(*sizes: int):
    """A test of the first ranks alone, once for each of these numbers; it gets their communicator."""

    def decorated(test):
        def on_ranks(size, *parameters):
            from mpi4py import MPI  # on ranks alone, where it has started already

            world = MPI.COMM_WORLD
            comm = world.Split(0 if world.rank < size else 1)
            if world.rank < size:
                test(comm, *parameters)

        _, *names = inspect.signature(test).parameters
        on_ranks = _named_like(test, on_ranks, ["size", *names])
        return pytest.mark.parametrize("size", sizes)(on_every_rank(on_ranks))

    return decorated


def _named_like(test, run, names):
    """`run`, which pytest takes for this test with these parameters."""
    run.__signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names])
    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run
