"""The counting communicator: rounds of logs written by hand, and what it counts on real ranks."""

import pytest
from mpi4py import MPI

from workshop_lib import ranks
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


SETUP = """\
import numpy as np
from mpi4py import MPI
from workshop_lib.comm.counting import CountingComm, rounds
world = MPI.COMM_WORLD
comm = CountingComm(world)
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
"""


@pytest.fixture(scope="module")
def team():
    yield ranks.start(3)
    ranks.stop()


@pytest.fixture
def counted(team):
    """Runs lines with a new counting communicator; returns a variable of every rank."""
    if not team.healthy:
        team.restart()

    def run(lines: str, name: str = "found", timeout: float = 20) -> list:
        team.run_cell(SETUP + lines, "test cell", timeout)
        return team.pull(name)

    return run


def test_bytes_and_messages_of_arrays(counted):
    found = counted("""\
incoming = np.empty(10, np.float32)
comm.Sendrecv(np.full(10, comm.rank, np.float32), right, recvbuf=incoming, source=left)
request = comm.Isend([np.zeros(3), MPI.DOUBLE], right)
comm.Recv(np.empty(3), left)
request.Wait()
found = comm.bytes_sent, comm.messages_sent, rounds(world.allgather(comm.log)), incoming[0]
""")
    assert [row[:3] for row in found] == [(40 + 24, 2, 2)] * 3
    assert [row[3] for row in found] == [2, 0, 1]


def test_objects_count_as_what_pickle_makes_of_them(counted):
    found = counted("""\
import pickle
got = comm.sendrecv({"from": comm.rank}, right, source=left)
if comm.rank == 0:
    comm.send([1, 2, 3], 1)
elif comm.rank == 1:
    got = comm.recv(source=0)
pickled = len(pickle.dumps({"from": comm.rank})) + (comm.rank == 0) * len(pickle.dumps([1, 2, 3]))
found = comm.bytes_sent - pickled, comm.messages_sent, got
""")
    assert found == [(0, 2, {"from": 2}), (0, 1, [1, 2, 3]), (0, 1, {"from": 1})]


def test_only_the_sender_counts_and_any_source_is_logged_as_who_it_was(counted):
    found = counted("""\
if comm.rank == 0:
    for _ in range(2):
        comm.Recv(np.empty(5))
else:
    comm.Send(np.zeros(5), 0)
found = comm.bytes_sent, sorted(event.peer for event in comm.log), rounds(world.allgather(comm.log))
""")
    assert found == [(0, [1, 2], 2), (40, [0], 2), (40, [0], 2)]


RECEIVES_UNDER_WAY = {
    "waited for": """\
    receive = comm.Irecv(incoming, left)
    send = comm.Isend(np.full(2, float(comm.rank)), right)
    send.Wait(); receive.Wait()
""",
    "waited for together": """\
    send = comm.Isend(np.full(2, float(comm.rank)), right, step)
    MPI.Request.Waitall([comm.Irecv(incoming, left, step), send])
""",
    "from any rank, during a send": """\
    receive = comm.Irecv(incoming)
    comm.Ssend(np.full(2, float(comm.rank)), right)
    receive.Wait()
""",
    "tested": """\
    receive = comm.Irecv(incoming, left)
    send = comm.Isend(np.full(2, float(comm.rank)), right)
    while not (receive.Test() and send.Test()): pass
    receive.Wait()
""",
    "of objects": """\
    receive = comm.irecv(source=left)
    comm.isend(np.full(2, float(comm.rank)), right).wait()
    incoming = receive.wait()
""",
}


@pytest.mark.parametrize("way", RECEIVES_UNDER_WAY)
def test_receives_under_way_are_logged_once_they_are_waited_for(counted, way):
    found = counted(f"""\
incoming = np.empty(2)
for step in range(3):
{RECEIVES_UNDER_WAY[way]}
kinds = sorted(event.kind[-4:] for event in comm.log)
found = rounds(world.allgather(comm.log)), kinds, incoming.tolist(), comm.messages_sent
""")
    kinds = ["recv"] * 3 + ["send"] * 3
    assert found == [(3, kinds, [left] * 2, 3) for left in (2.0, 0.0, 1.0)]


def test_a_receive_that_nobody_waited_for_is_not_logged(counted):
    found = counted("""\
request = comm.Irecv(np.empty(1), left)
comm.Send(np.zeros(1), right)
found = [event.kind for event in comm.log]
request.Wait()
found += [event.kind for event in comm.log]
""")
    assert found == [["send", "send", "recv"]] * 3


@pytest.mark.parametrize("name", ["Allreduce", "bcast", "Isendrecv"])
def test_other_calls_are_refused_with_a_sentence(counted, name):
    found = counted(f"""\
try:
    comm.{name}(None)
except AttributeError as error:
    found = str(error)
""")
    assert (
        found
        == [
            f"this communicator has no {name}: build it from Send, Isend, Recv, Irecv, Sendrecv, send, "
            "isend, recv, irecv, sendrecv, rank and size"
        ]
        * 3
    )


def test_a_cycle_of_sends_never_ends_and_each_rank_s_line_is_told(team, counted):
    lines = "comm.Send(np.zeros(1), right)\ncomm.Recv(np.empty(1), left)\n"
    with pytest.raises(ranks.RankError) as caught:
        counted(lines, timeout=2)
    text = str(caught.value)
    assert "not finished after 2 s" in text
    for rank in range(3):
        assert f"rank {rank} is at test cell" in text
    assert text.count("comm.Send(np.zeros(1), right)") == 3
