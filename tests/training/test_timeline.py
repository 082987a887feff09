"""What ranks did with their time, from hand-made traces in which every duration is known."""

import pytest

from workshop_lib.machine.world import World
from workshop_lib.training import callbacks
from workshop_lib.training.backends.base import Communicator
from workshop_lib.training.timeline import COMMUNICATING, COMPUTING, WAITING, timeline

MS = 1e-3


def step(number, start_ms, end_ms, *meetings_ms):
    meetings = tuple((came * MS, left * MS) for came, left in meetings_ms)
    return (number, start_ms * MS, end_ms * MS, meetings)


def durations_ms(pieces):
    return [(piece.kind, round((piece.end_s - piece.start_s) / MS, 6)) for piece in pieces]


def test_the_others_wait_exactly_as_long_as_the_late_rank_is_late():
    early, late = step(1, 0, 10, (5, 9)), step(1, 0, 10, (8, 9))
    found = timeline([[early], [late]])
    first, second = found.pieces
    assert durations_ms(first) == [(COMPUTING, 5), (WAITING, 3), (COMMUNICATING, 1), (COMPUTING, 1)]
    assert durations_ms(second) == [(COMPUTING, 8), (WAITING, 0), (COMMUNICATING, 1), (COMPUTING, 1)]
    assert found.shares()[0] == pytest.approx({COMPUTING: 0.6, WAITING: 0.3, COMMUNICATING: 0.1})
    assert found.shares()[1] == pytest.approx({COMPUTING: 0.9, WAITING: 0.0, COMMUNICATING: 0.1})
    assert found.mean_shares() == pytest.approx({COMPUTING: 0.75, WAITING: 0.15, COMMUNICATING: 0.1})


def test_a_step_may_have_several_meetings():
    ranks = [[step(8, 0, 20, (5, 7), (10, 16))], [step(8, 0, 20, (6, 7), (15, 16))]]
    waited = [ms for kind, ms in durations_ms(timeline(ranks).pieces[0]) if kind == WAITING]
    assert waited == [1, 5]


def traced(*numbers):
    """Steps of 10 ms, each with a meeting in its middle."""
    return [step(k, 10 * k, 10 * k + 10, (10 * k + 5, 10 * k + 6)) for k in numbers]


def test_only_steps_that_all_ranks_have_are_compared_and_only_the_last_if_asked():
    found = timeline([traced(1, 2, 3), traced(2, 3, 4)])
    assert [number for number, _ in found.steps] == [2, 3]
    assert found.seconds == pytest.approx(0.020)
    ranks = [traced(*range(1, 10))] * 2
    assert [number for number, _ in timeline(ranks, last_steps=3).steps] == [7, 8, 9]
    assert [number for number, _ in timeline(ranks, last_s=0.015).steps] == [8, 9]
    assert len(timeline(ranks).steps) == 9


def test_clocks_that_disagree_give_no_negative_times():
    ranks = [[step(1, 0, 10, (5, 6))], [step(1, 2, 12, (7, 8))]]  # the second clock is 2 ms ahead
    for row in timeline(ranks).pieces:
        assert all(ms >= 0 for _, ms in durations_ms(row))
        assert sum(ms for _, ms in durations_ms(row)) == pytest.approx(10)


def test_without_meetings_all_is_computing_and_said_to_be_unknown():
    found = timeline([[step(1, 0, 10)], [step(1, 0, 11)]])
    assert not found.collectives_known
    assert found.mean_shares() == {COMPUTING: 1.0, WAITING: 0.0, COMMUNICATING: 0.0}


@pytest.mark.parametrize("nothing", [[], [[], []], [[step(1, 0, 1)], []]])
def test_nothing_in_common_gives_an_empty_timeline(nothing):
    found = timeline(nothing)
    assert (found.steps, found.seconds) == ([], 0.0)


class TwoHosts(Communicator):
    """As rank 2 of 4 would see them: two ranks on another host, whose clock shows something else."""

    def __init__(self, host):
        super().__init__(World(), None)
        self.host = host

    def allgather(self, value):
        if value is None:
            return [None] * 4
        _, now_s = value
        return [("other", 10.0), ("other", 11.0), (self.host, now_s - 0.5), (self.host, now_s)]


def test_ranks_on_one_host_share_one_zero(monkeypatch):
    monkeypatch.setattr(callbacks.socket, "gethostname", lambda: "here")
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: 100.0)
    kept = callbacks.Tracer(TwoHosts("here"))
    assert kept.clock_origin_s == 99.5, "the reading of the first rank on this host"
    assert kept.add(7, 99.75, [(99.8, 99.9)]) == 100.0
    assert kept.last[0] == (7, 0.25, 0.5, ((pytest.approx(0.3), pytest.approx(0.4)),))
