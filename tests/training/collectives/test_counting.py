"""Rounds of logs written by hand, and how micro-benchmarks count calls, on a communicator of one rank.

What a CountingComm logs on real ranks is in test_counting_on_ranks.py.
"""

import time

import pytest
from mpi4py import MPI

from workshop_lib.forecast import benchmark
from workshop_lib.training.collectives.counting import CountingComm, Event, rounds


def send(peer: int, nbytes: int = 8) -> Event:
    return Event("send", peer, 0, nbytes)


def recv(peer: int, since: int = 0, tag: int = 0) -> Event:
    return Event("recv", peer, tag, since=since)


def isend(peer: int) -> Event:
    return Event("isend", peer, 0, 8)


def sendrecv(dest: int, source: int) -> list[Event]:
    return [send(dest), recv(source, since=1)]


def ring(p: int, steps: int, step) -> list[list[Event]]:
    """The logs of `steps` steps; step(rank, right, left) is what a rank does in each."""
    return [[event for _ in range(steps) for event in step(r, (r + 1) % p, (r - 1) % p)] for r in range(p)]


RING_STEPS = {  # what rank r does, and the rounds that each step of the ring takes
    "sendrecv": (lambda r, right, left: sendrecv(right, left), 1),
    "in turns": (lambda r, right, left: [send(right), recv(left)] if r % 2 == 0 else [recv(left), send(right)], 2),
    "isend": (lambda r, right, left: [isend(right), recv(left)], 1),
    "irecv under way": (lambda r, right, left: [send(right), recv(left, since=1, tag=MPI.ANY_TAG)], 1),
    "from any": (lambda r, right, left: [send(right), recv(MPI.ANY_SOURCE, since=1, tag=MPI.ANY_TAG)], 1),
}


@pytest.mark.parametrize("how", RING_STEPS)
def test_a_step_of_a_ring_takes_a_round_or_two_in_turns(how):
    step, rounds_a_step = RING_STEPS[how]
    for p in (2, 4, 8) if how == "in turns" else (2, 3, 4, 5, 8):
        assert rounds(ring(p, 2 * (p - 1), step)) == rounds_a_step * 2 * (p - 1)


def test_receives_under_way_can_be_waited_for_in_any_order():
    for waited in ([recv(1), recv(2, since=1)], [recv(2), recv(1, since=1)]):
        assert rounds([waited, [send(0)], [recv(3), send(0)], [send(2)]]) == 2


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_a_root_serves_one_rank_a_round(p):
    gather = [[recv(r) for r in range(1, p)], *([send(0)] for _ in range(1, p))]
    assert rounds(gather) == p - 1
    broadcast = [[send(r) for r in range(1, p)], *([recv(0)] for _ in range(1, p))]
    assert rounds(broadcast) == p - 1
    both = [first + second for first, second in zip(gather, broadcast, strict=True)]
    assert rounds(both) == 2 * (p - 1)


def test_a_receive_without_a_send_is_an_error():
    with pytest.raises(ValueError, match="no matching send"):
        rounds([[recv(1)], []])


@pytest.mark.parametrize("name", ["Allreduce", "bcast", "Isendrecv"])
def test_other_calls_are_refused_with_a_sentence(name):
    calls = "Send, Isend, Recv, Irecv, Sendrecv, send, isend, recv, irecv, sendrecv"
    with pytest.raises(AttributeError, match=f"this communicator has no {name}: build it from {calls}, rank and size"):
        getattr(CountingComm(MPI.COMM_SELF), name)


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
