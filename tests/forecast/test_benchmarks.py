"""The micro-benchmarks on two real ranks, at tiny sizes: what they report, and what they refuse."""

from types import SimpleNamespace

import pytest

from workshop_lib import ranks
from workshop_lib.forecast import benchmark

from lessons.forecasting import fit

pytestmark = pytest.mark.full

SIZES = (4, 4096)


@pytest.fixture(scope="module")
def team():
    yield ranks.start(2)
    ranks.stop()


def test_every_way_is_timed_at_every_size(team):
    rows = fit.measure_communication(team, SIZES, repeats=5, timeout_s=60)
    ways = ["MPI", "gloo"]
    assert [(row["way"], row["message_bytes"]) for row in rows] == [("ping-pong", n) for n in SIZES] + [
        (way, n) for n in SIZES for way in ways
    ]
    for row in rows:
        assert row["ranks"] == 2
        assert len(row["seconds"]) == 5
        assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"] < 1
        assert row["bus_bytes_per_s"] == row["message_bytes"] / row["median_s"]  # 2 (p - 1)/p is 1 on two ranks


def test_the_command_prints_one_table(team, capsys):
    def command():
        import runpy
        import sys

        sys.argv[1:] = ["16"]
        runpy.run_module("workshop_lib.forecast.benchmark", run_name="__main__")

    team.run(command, timeout=60)
    lines = capsys.readouterr().out.splitlines()
    assert sum("2 ranks; median, least and most of 7 rounds" in line for line in lines) == 1
    for way in ("ping-pong", "MPI", "gloo"):
        assert [line.split(way)[1].split()[0] for line in lines if f"{way} " in line] == ["4", "16"]


def test_steps_are_timed_with_and_without_their_allreduce(team):
    [small, large] = fit.measure_steps(team, [(8, 4), (512, 64)], repeats=2)
    assert small["parameters"] == 795 * 8 + 10 and large["message_bytes"] == 4 * (795 * 512 + 10)
    for row in (small, large):
        assert row["ranks"] == 2 and len(row["step_s"]) == len(row["compute_s"]) == 2
    assert min(large["step_s"]) > min(small["compute_s"])


def test_the_bandwidth_is_that_of_the_bus_and_a_ping_pong_needs_two_ranks():
    with pytest.raises(ValueError, match="between ranks 0 and 1 of 1: start more ranks"):
        benchmark.ping_pong(SimpleNamespace(size=1), SIZES)
    found = benchmark.row("ring", 4, 3_000_000, [4e-6, 1e-6, 2e-6, 3e-6, 8e-6])
    assert (found["median_s"], found["min_s"], found["max_s"]) == (3e-6, 1e-6, 8e-6)
    assert found["bus_bytes_per_s"] == pytest.approx(1.5e12), "2 (4 - 1)/4 times 1 TB/s"
