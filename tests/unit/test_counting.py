"""Rounds of logs written by hand; what a CountingComm logs on real ranks is in tests/ranks/test_comm.py."""

import pytest
from mpi4py import MPI

from workshop_lib.comm.counting import Event, rounds


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


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8])
def test_a_ring_of_sendrecv_takes_a_round_a_step(p):
    assert rounds(ring(p, 2 * (p - 1), lambda _, right, left: sendrecv(right, left))) == 2 * (p - 1)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_a_ring_in_turns_takes_two_rounds_a_step(p):
    def step(rank, right, left):
        return [send(right), recv(left)] if rank % 2 == 0 else [recv(left), send(right)]

    assert rounds(ring(p, 2 * (p - 1), step)) == 4 * (p - 1)


@pytest.mark.parametrize("p", [3, 4, 8])
def test_a_ring_of_isend_and_recv_takes_a_round_a_step(p):
    assert rounds(ring(p, 2 * (p - 1), lambda _, right, left: [isend(right), recv(left)])) == 2 * (p - 1)


@pytest.mark.parametrize("p", [3, 4, 8])
@pytest.mark.parametrize("peer", ["the left neighbour", "any"])
def test_a_receive_under_way_while_a_send_blocks_takes_its_round(p, peer):
    def step(_, right, left):
        return [send(right), recv(left if peer != "any" else MPI.ANY_SOURCE, since=1, tag=MPI.ANY_TAG)]

    assert rounds(ring(p, 2 * (p - 1), step)) == 2 * (p - 1)


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


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_recursive_doubling_takes_log2_p_rounds(power):
    p = 2**power
    logs = [[event for bit in range(power) for event in sendrecv(rank ^ 2**bit, rank ^ 2**bit)] for rank in range(p)]
    assert rounds(logs) == power


def test_a_chain_takes_a_round_a_link():
    assert rounds([[send(1)], [recv(0), send(2)], [recv(1), send(3)], [recv(2)]]) == 3


def test_no_messages_take_no_rounds():
    assert rounds([[], [], []]) == 0


def test_a_receive_without_a_send_is_an_error():
    with pytest.raises(ValueError, match="no matching send"):
        rounds([[recv(1)], []])
