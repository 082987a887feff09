"""Small MPI programs, each with one known fault that it makes only where `wrong` is true, for the deadlock explorer.

The kinds of faults are those of the MPI Bugs Initiative (M. Laurent, E. Saillard and M. Quinson, The MPI Bugs
Initiative: a Framework for MPI Verification Tools Evaluation, Correctness workshop at SC21) that mpi4py's
point-to-point calls and collectives can have; the programs are our own. Orders of plain messages, on more ranks than a
fault needs, are left to test_explorer.py's random programs.
"""

import types
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from mpi4py import MPI


class Faulty(NamedTuple):
    """A program, and what the explorer may call its fault."""

    program: Callable
    kinds: tuple[str, ...]
    ranks: int

    def run_with(self, wrong: bool) -> Callable:
        """The program as a function of the communicator alone, which is what the explorer takes."""
        return types.FunctionType(self.program.__code__, self.program.__globals__, argdefs=(wrong,))


PROGRAMS: dict[str, Faulty] = {}


def faulty(*kinds: str, ranks: int = 2):
    def register(program):
        PROGRAMS[program.__name__] = Faulty(program, kinds, ranks)
        return program

    return register


# Call ordering


@faulty("deadlock")
def both_receive_first(comm, wrong):
    partner = 1 - comm.rank
    if wrong or comm.rank == 1:
        theirs = comm.recv(source=partner)
        comm.send(comm.rank, dest=partner)
    else:
        comm.send(comm.rank, dest=partner)
        theirs = comm.recv(source=partner)
    return theirs


@faulty("deadlock", "stuck")
def nobody_receives(comm, wrong):
    if comm.rank == 0:
        comm.Ssend(np.zeros(3), dest=1)
    elif not wrong:
        comm.Recv(np.empty(3), source=0)


@faulty("deadlock")
def waits_before_the_partner_can_receive(comm, wrong):
    theirs = np.empty(4)
    sending = comm.Issend(np.full(4, comm.rank, float), dest=1 - comm.rank)
    if wrong:
        sending.Wait()
    receiving = comm.Irecv(theirs, source=1 - comm.rank)
    MPI.Request.Waitall([sending, receiving])
    return theirs


@faulty("deadlock")
def both_probe_first(comm, wrong):
    if wrong:
        comm.Probe(source=1 - comm.rank)
    request = comm.isend("x", dest=1 - comm.rank)
    comm.Probe(source=1 - comm.rank)
    received = comm.recv(source=1 - comm.rank)
    request.wait()
    return received


@faulty("mismatch")
def reduce_meets_broadcast(comm, wrong):
    x = np.full(3, comm.rank, float)
    if wrong and comm.rank == 1:
        comm.Reduce(x, None, root=0)
    else:
        comm.Bcast(x, root=0)
    return x


@faulty("mismatch", ranks=3)
def two_collectives_in_the_other_order(comm, wrong):
    x, y = np.ones(2), np.empty(2)
    if wrong and comm.rank == 2:
        comm.Bcast(x, root=0)
        comm.Allreduce(x, y)
    else:
        comm.Allreduce(x, y)
        comm.Bcast(x, root=0)
    return y


@faulty("deadlock")
def the_test_accuracy_on_rank_zero_alone(comm, wrong):
    if wrong and comm.rank == 1:
        return None
    return comm.allreduce(10 + comm.rank) / 100


@faulty("stuck", "deadlock")
def a_broadcast_around_a_message(comm, wrong):
    if wrong and comm.rank == 1:
        comm.recv(source=0)
    settings = comm.bcast("settings" if comm.rank == 0 else None, root=0)
    if comm.rank == 0:
        comm.send(1, dest=1)
    elif not wrong:
        comm.recv(source=0)
    return settings


@faulty("stuck", "deadlock")
def a_barrier_before_the_receive(comm, wrong):
    if comm.rank == 0:
        request = comm.isend(1, dest=1)
        if wrong:
            request.wait()
    comm.Barrier()
    if comm.rank == 1:
        return comm.recv(source=0)
    request.wait()


@faulty("deadlock", ranks=3)
def more_steps_on_one_rank(comm, wrong):
    """The data doesn't divide evenly, and each batch ends with an allreduce."""
    steps = -(-(7 + comm.rank) // 4)
    if not wrong:
        steps = comm.allreduce(steps, op=MPI.MAX)
    return sum(comm.allreduce(step) for step in range(steps))


@faulty("mismatch", "deadlock")
def blocking_meets_nonblocking(comm, wrong):
    x = np.full(2, comm.rank)
    if wrong and comm.rank == 1:
        comm.Bcast(x, root=0)
    else:
        comm.Ibcast(x, root=0).Wait()
    return x


# Buffering


@faulty("stuck")
def both_send_first(comm, wrong):
    mine, theirs, partner = np.full(10, comm.rank, float), np.empty(10), 1 - comm.rank
    if wrong:
        comm.Send(mine, dest=partner)
        comm.Recv(theirs, source=partner)
    else:
        comm.Sendrecv(mine, dest=partner, recvbuf=theirs, source=partner)
    return theirs


@faulty("stuck")
def tags_in_the_other_order(comm, wrong):
    if comm.rank == 0:
        comm.send("weights", dest=1, tag=1)
        comm.send("bias", dest=1, tag=2)
    else:
        return [comm.recv(source=0, tag=tag) for tag in ((2, 1) if wrong else (1, 2))]


@faulty("stuck")
def sends_to_itself(comm, wrong):
    if wrong:
        comm.send("a note", dest=comm.rank)
        return comm.recv(source=comm.rank)
    request = comm.irecv(source=comm.rank)
    comm.send("a note", dest=comm.rank)
    return request.wait()


# Parameter matching


@faulty("mismatch")
def each_is_its_own_root(comm, wrong):
    return comm.bcast(comm.rank, root=comm.rank if wrong else 0)


@faulty("mismatch", ranks=3)
def two_operations(comm, wrong):
    return comm.allreduce(comm.rank, op=MPI.SUM if wrong and comm.rank else MPI.MAX)


@faulty("mismatch")
def gradients_of_two_lengths(comm, wrong):
    gradient = np.ones(10 + wrong * comm.rank)
    comm.Allreduce(MPI.IN_PLACE, gradient)
    return gradient


@faulty("mismatch")
def two_types_in_a_broadcast(comm, wrong):
    comm.Bcast(np.zeros(4, np.float64 if wrong and comm.rank == 0 else np.float32), root=0)


@faulty("message")
def two_types_in_a_message(comm, wrong):
    if comm.rank == 0:
        comm.Send(np.arange(3) if wrong else np.arange(3.0), dest=1)
    else:
        x = np.zeros(5)
        comm.Recv(x, source=0)
        return x


@faulty("message")
def too_little_room(comm, wrong):
    if comm.rank == 0:
        comm.Send(np.ones(6), dest=1)
    else:
        status = MPI.Status()
        comm.Probe(source=0, status=status)
        x = np.empty(status.Get_count(MPI.DOUBLE) - wrong)
        comm.Recv(x, source=0)
        return x


@faulty("message", "error")
def an_array_received_as_an_object(comm, wrong):
    if comm.rank == 0:
        send = comm.Send if wrong else comm.send
        send(np.ones(6), dest=1)
    else:
        return comm.recv(source=0)


@faulty("deadlock", "stuck")
def another_tag(comm, wrong):
    if comm.rank == 0:
        comm.send(1, dest=1, tag=7)
    else:
        return comm.recv(source=0, tag=8 if wrong else 7)


@faulty("mismatch", ranks=3)
def no_room_for_everyone(comm, wrong):
    rows = np.empty(4 if wrong else 6) if comm.rank == 0 else None
    comm.Gather(np.full(2, comm.rank, float), rows, root=0)
    return rows


# Invalid parameter


@faulty("error", ranks=3)
def a_neighbor_that_is_not_there(comm, wrong):
    right, left = comm.rank + 1, comm.rank - 1
    if not wrong:
        right = right if right < comm.size else MPI.PROC_NULL
        left = left if left >= 0 else MPI.PROC_NULL
    return comm.sendrecv(comm.rank, dest=right, source=left)


@faulty("mismatch", ranks=3)
def a_list_of_another_length(comm, wrong):
    parts = [1, 2] if wrong else [1, 2, 3]
    return comm.scatter(parts if comm.rank == 0 else None, root=0)


@faulty("error")
def a_list_where_an_array_belongs(comm, wrong):
    x = [0.0, comm.rank]
    if not wrong:
        x = np.array(x)
    comm.Bcast(x, root=0)
    return x


# Message race


@faulty("deadlock", ranks=3)
def any_source_then_a_named_one(comm, wrong):
    if comm.rank:
        return comm.send("done", dest=0)
    first = comm.recv(source=MPI.ANY_SOURCE if wrong else 1)
    return first, comm.recv(source=2)


@faulty("race", ranks=4)
def results_in_the_order_they_come(comm, wrong):
    if comm.rank:
        return comm.send(comm.rank**2, dest=0)
    status, results = MPI.Status(), {}
    for place in range(comm.size - 1):
        result = comm.recv(source=MPI.ANY_SOURCE, status=status)
        results[place if wrong else status.source] = result
    return sorted(results.items())


@faulty("message", "race", ranks=3)
def the_probed_message_and_another_one(comm, wrong):
    if comm.rank:
        return comm.Send(np.ones(comm.rank), dest=0)
    status, sums = MPI.Status(), []
    for _ in range(2):
        comm.Probe(source=MPI.ANY_SOURCE, status=status)
        x = np.empty(status.Get_count(MPI.DOUBLE))
        comm.Recv(x, source=MPI.ANY_SOURCE if wrong else status.source)
        sums.append(x.sum())
    return sorted(sums)


@faulty("race", "deadlock", ranks=3)
def two_steps_mixed(comm, wrong):
    """A quick worker's second result is taken for the slow one's first."""
    tags = (0, 0) if wrong else (0, 1)
    if comm.rank == 0:
        return [sum(comm.recv(source=MPI.ANY_SOURCE, tag=tag) for _ in range(2)) for tag in tags]
    for step, tag in enumerate(tags):
        comm.send(10 * step + comm.rank, dest=0, tag=tag)


@faulty("deadlock", ranks=3)
def buffering_overtakes(comm, wrong):
    """Rank 2's message can be first at rank 1 only if MPI buffers what rank 0 sends there."""
    if comm.rank == 0:
        send = comm.send if wrong else comm.ssend
        send("a", dest=1)
        comm.send("b", dest=2)
    elif comm.rank == 1:
        comm.recv(source=MPI.ANY_SOURCE)
        comm.recv(source=2)
    else:
        comm.recv(source=0)
        comm.send("c", dest=1)


@faulty("error", ranks=3)
def the_first_is_said_to_be_rank_one(comm, wrong):
    if comm.rank:
        return comm.send(1, dest=0)
    status = MPI.Status()
    total = comm.recv(source=MPI.ANY_SOURCE, status=status)
    assert status.Get_source() == 1 or not wrong
    return total + comm.recv(source=MPI.ANY_SOURCE)


@faulty("race", ranks=3)
def a_broadcast_separates_nothing(comm, wrong):
    """A broadcast doesn't keep the messages after it from those before it: its root may leave at once."""
    if comm.rank == 1:
        sources = (MPI.ANY_SOURCE, MPI.ANY_SOURCE) if wrong else (2, 0)
        requests = [comm.irecv(source=source) for source in sources]
    if comm.rank == 2:
        requests = [comm.isend("before", dest=1)]
    comm.bcast("settings" if comm.rank == 0 else None, root=0)
    if comm.rank == 0:
        requests = [comm.isend("after", dest=1)]
    return MPI.Request.waitall(requests)


# Local concurrency


@faulty("reuse")
def overwritten_while_it_is_sent(comm, wrong):
    x = np.full(3, 1.0 + comm.rank)
    if comm.rank == 1:
        comm.Recv(x, source=0)
        return x
    request = comm.Isend(x, dest=1)
    if not wrong:
        request.Wait()
    x *= 2
    request.Wait()


@faulty("reuse")
def read_before_it_is_there(comm, wrong):
    if comm.rank == 0:
        return comm.Send(np.ones(3), dest=1)
    x = np.zeros(3)
    request = comm.Irecv(x, source=0)
    if not wrong:
        request.Wait()
    total = x.sum()
    request.Wait()
    return total


@faulty("reuse")
def written_while_it_is_received(comm, wrong):
    x, partner = np.zeros(3), 1 - comm.rank
    mine = x if wrong else np.zeros(3)
    request = comm.Irecv(x, source=partner)
    mine[0] = comm.rank
    comm.Send(mine, dest=partner)
    request.Wait()
    return x


# Request lifecycle


@faulty("note")
def a_send_never_waited_for(comm, wrong):
    if comm.rank == 1:
        return comm.Recv(np.ones(3), source=0)
    request = comm.Isend(np.ones(3), dest=1)
    if not wrong:
        request.Wait()


@faulty("reuse", "note")
def a_receive_never_waited_for(comm, wrong):
    if comm.rank == 0:
        return comm.Send(np.ones(3), dest=1)
    x = np.zeros(3)
    request = comm.Irecv(x, source=0)
    if not wrong:
        request.Wait()
    return x
