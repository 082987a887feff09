"""What a CountingComm logs and counts on three real ranks, on which these tests run."""

import pickle
import threading

import numpy as np
import pytest
from mpi4py import MPI
from our_ranks import on_every_rank

from workshop_lib.training.collectives.counting import CountingComm, rounds

pytestmark = pytest.mark.full

RANKS = 3


def in_a_ring():
    """The communicator, and the ranks to the right and left of this one."""
    comm = CountingComm(MPI.COMM_WORLD)
    return comm, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def rounds_of(comm) -> int:
    return rounds(MPI.COMM_WORLD.allgather(comm.log))


@on_every_rank
def test_bytes_messages_and_rounds_of_arrays_are_counted():
    comm, right, left = in_a_ring()
    incoming = np.empty(10, np.float32)
    comm.Sendrecv(np.full(10, comm.rank, np.float32), right, recvbuf=incoming, source=left)
    request = comm.Isend([np.zeros(3), MPI.DOUBLE], right)
    comm.Recv(np.empty(3), left)
    request.Wait()
    assert (comm.bytes_sent, comm.messages_sent, rounds_of(comm)) == (40 + 24, 2, 2)
    assert incoming[0] == left


@on_every_rank
def test_objects_count_as_what_pickle_makes_of_them():
    comm, right, left = in_a_ring()
    mine, more = {"from": comm.rank}, [1, 2, 3]
    assert comm.sendrecv(mine, dest=right, source=left) == {"from": left}
    sent = [mine]
    if comm.rank == 0:
        comm.send(more, dest=1)
        sent.append(more)
    if comm.rank == 1:
        assert comm.recv(source=0) == more
    assert (comm.bytes_sent, comm.messages_sent) == (sum(len(pickle.dumps(each)) for each in sent), len(sent))


@on_every_rank
def test_only_the_sender_counts_and_any_source_is_logged_as_who_it_was():
    comm, *_ = in_a_ring()
    if comm.rank == 0:
        for _ in range(2):
            comm.Recv(np.empty(5))
    else:
        comm.Send(np.zeros(5), 0)
    peers = sorted(event.peer for event in comm.log)
    assert (comm.bytes_sent, peers) == ((0, [1, 2]) if comm.rank == 0 else (40, [0]))
    assert rounds_of(comm) == 2


def waited_for(comm, mine, incoming, right, left, step):
    receive = comm.Irecv(incoming, left)
    comm.Isend(mine, right).Wait()
    receive.Wait()


def waited_for_together(comm, mine, incoming, right, left, step):
    send = comm.Isend(mine, right, step)
    MPI.Request.Waitall([comm.Irecv(incoming, left, step), send])


def from_any_rank_during_a_send(comm, mine, incoming, right, left, step):
    receive = comm.Irecv(incoming)
    comm.Ssend(mine, right)
    receive.Wait()
    MPI.COMM_WORLD.Barrier()  # else the next step's message could come first


def polled(comm, mine, incoming, right, left, step):
    receive, send = comm.Irecv(incoming, left), comm.Isend(mine, right)
    while not (receive.Test() and send.Test()):
        pass
    receive.Wait()


def of_objects(comm, mine, incoming, right, left, step):
    receive = comm.irecv(source=left)
    comm.isend(mine, right).wait()
    incoming[:] = receive.wait()


WAYS = [waited_for, waited_for_together, from_any_rank_during_a_send, polled, of_objects]


@pytest.mark.parametrize("exchange", WAYS)
@on_every_rank
def test_receives_under_way_are_logged_once_they_are_waited_for(exchange):
    comm, right, left = in_a_ring()
    incoming = np.empty(2)
    for step in range(3):
        exchange(comm, np.full(2, float(comm.rank)), incoming, right, left, step)
    assert sorted(event.kind[-4:] for event in comm.log) == ["recv"] * 3 + ["send"] * 3
    assert (rounds_of(comm), comm.messages_sent) == (3, 3)
    assert incoming.tolist() == [left] * 2


@on_every_rank
def test_a_receive_that_nobody_waited_for_is_not_logged():
    comm, right, left = in_a_ring()
    request = comm.Irecv(np.empty(1), left)
    comm.Send(np.zeros(1), right)
    assert [event.kind for event in comm.log] == ["send"]
    request.Wait()
    assert [event.kind for event in comm.log] == ["send", "recv"]


def receive(comm, left, name):
    """What the call of this name sends: an array or an object."""
    return comm.Recv(np.empty(1), left) if name[0].isupper() else comm.recv(source=left)


@pytest.mark.parametrize("name", ["Send", "Ssend", "send", "ssend"])
@on_every_rank
def test_a_blocking_send_ends_once_its_receiver_has_begun(name):
    """So that a cycle of blocking sends never ends, however short the messages."""
    comm, right, left = in_a_ring()
    sending = threading.Thread(target=getattr(comm, name), args=(np.zeros(1), right))
    sending.start()
    sending.join(0.1)
    assert sending.is_alive()
    MPI.COMM_WORLD.Barrier()
    receive(comm, left, name)
    sending.join(10)
    assert not sending.is_alive()


@pytest.mark.parametrize("name", ["Isend", "Issend", "isend", "issend"])
@on_every_rank
def test_a_nonblocking_send_is_under_way_until_its_receiver_has_begun(name):
    comm, right, left = in_a_ring()
    request = getattr(comm, name)(np.zeros(1), right)
    assert not request.Test()
    MPI.COMM_WORLD.Barrier()
    receive(comm, left, name)
    request.Wait()
