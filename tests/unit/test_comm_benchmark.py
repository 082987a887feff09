"""How the micro-benchmarks count calls and refuse wrong sums, on a communicator of one rank."""

import time

import numpy as np
import pytest
from mpi4py import MPI

from workshop_lib.comm import benchmark
from workshop_lib.errors import WorkshopError


def test_calls_that_turn_slow_are_made_less_often(monkeypatch):
    """The warm-up promises microseconds; then each call takes 5 ms, as when a rank waits for a core."""
    monkeypatch.setattr(benchmark, "MOST_CALLS", 10)
    monkeypatch.setattr(benchmark, "ROUND_S", 1e-3)
    calls = []

    def call():
        calls.append(None)
        if len(calls) > benchmark.WARM_UP:
            time.sleep(5e-3)

    [seconds] = benchmark.timed(MPI.COMM_SELF, {"slow": call}, repeats=4).values()
    assert len(seconds) == 4
    assert min(seconds) >= 5e-3
    assert len(calls) <= benchmark.WARM_UP + 10 + 3 * 2


def test_rounds_go_round_the_ways(monkeypatch):
    monkeypatch.setattr(benchmark, "MOST_CALLS", 1)
    seen = []
    calls = {name: lambda name=name: seen.append(name) for name in ("a", "b")}
    benchmark.timed(MPI.COMM_SELF, calls, repeats=3)
    assert "".join(seen[2 * benchmark.WARM_UP :]) == "ababab"


def test_a_sum_that_is_wrong_is_never_timed():
    def way(array: np.ndarray):
        return lambda: array.__iadd__(1), lambda: array

    with pytest.raises(WorkshopError, match="the sum of 10 values by plus one is wrong on rank 0."):
        benchmark.allreduces(MPI.COMM_SELF, {"plus one": way}, [40], 1)


def test_a_ping_pong_needs_two_ranks_and_a_benchmark_a_round():
    with pytest.raises(ValueError, match="between ranks 0 and 1 of 1: start more ranks"):
        benchmark.ping_pong(MPI.COMM_SELF, [4])
    with pytest.raises(ValueError, match="repeats is 0"):
        benchmark.timed(MPI.COMM_SELF, {}, 0)
