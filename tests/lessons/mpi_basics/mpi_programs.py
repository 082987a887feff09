"""Small MPI programs with one known fault each, and the same without it, for the deadlock explorer.

The kinds of faults are those of the MPI Bugs Initiative (M. Laurent, E. Saillard and M. Quinson, The MPI Bugs
Initiative: a Framework for MPI Verification Tools Evaluation, Correctness workshop at SC21) that mpi4py's
point-to-point calls and collectives can have; the programs are our own. Orders of plain messages, on more ranks than a
fault needs, are left to test_explorer.py's random programs.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from mpi4py import MPI


class Pair(NamedTuple):
    """A fault and its cure. kinds: what the explorer may call it."""

    kinds: tuple[str, ...]
    ranks: int
    wrong: Callable
    right: Callable


PAIRS: dict[str, Pair] = {}


def pair(*kinds: str, ranks: int = 2):
    def register(programs):
        PAIRS[programs.__name__] = Pair(kinds, ranks, programs.wrong, programs.right)
        return programs

    return register


# Call ordering


@pair("deadlock")
class BothReceiveFirst:
    def wrong(comm):
        theirs = comm.recv(source=1 - comm.rank)
        comm.send(comm.rank, dest=1 - comm.rank)
        return theirs

    def right(comm):
        if comm.rank == 0:
            comm.send(comm.rank, dest=1)
            return comm.recv(source=1)
        theirs = comm.recv(source=0)
        comm.send(comm.rank, dest=0)
        return theirs


@pair("deadlock", "stuck")
class NobodyReceives:
    def wrong(comm):
        if comm.rank == 0:
            comm.Ssend(np.zeros(3), dest=1)

    def right(comm):
        x = np.empty(3)
        if comm.rank == 0:
            comm.Ssend(np.zeros(3), dest=1)
        else:
            comm.Recv(x, source=0)
            return x


@pair("deadlock")
class WaitsBeforeThePartnerCanReceive:
    def wrong(comm):
        theirs = np.empty(4)
        comm.Issend(np.full(4, comm.rank, float), dest=1 - comm.rank).Wait()
        comm.Irecv(theirs, source=1 - comm.rank).Wait()
        return theirs

    def right(comm):
        theirs = np.empty(4)
        requests = [comm.Issend(np.full(4, comm.rank, float), dest=1 - comm.rank)]
        requests.append(comm.Irecv(theirs, source=1 - comm.rank))
        MPI.Request.Waitall(requests)
        return theirs


@pair("deadlock")
class BothProbeFirst:
    def wrong(comm):
        comm.Probe(source=1 - comm.rank)
        comm.send("x", dest=1 - comm.rank)
        return comm.recv(source=1 - comm.rank)

    def right(comm):
        request = comm.isend("x", dest=1 - comm.rank)
        comm.Probe(source=1 - comm.rank)
        x = comm.recv(source=1 - comm.rank)
        request.wait()
        return x


@pair("mismatch")
class ReduceMeetsBroadcast:
    def wrong(comm):
        x = np.full(3, comm.rank, float)
        if comm.rank == 0:
            comm.Bcast(x, root=0)
        else:
            comm.Reduce(x, None, root=0)

    def right(comm):
        x = np.full(3, comm.rank, float)
        comm.Bcast(x, root=0)
        return x


@pair("mismatch", ranks=3)
class TwoCollectivesInTheOtherOrder:
    def wrong(comm):
        x, y = np.ones(2), np.empty(2)
        if comm.rank == 2:
            comm.Bcast(x, root=0)
            comm.Allreduce(x, y)
        else:
            comm.Allreduce(x, y)
            comm.Bcast(x, root=0)
        return y

    def right(comm):
        x, y = np.ones(2), np.empty(2)
        comm.Allreduce(x, y)
        comm.Bcast(x, root=0)
        return y


@pair("deadlock", ranks=2)
class TheTestAccuracyOnRankZeroAlone:
    def wrong(comm):
        correct = 10 + comm.rank
        if comm.rank == 0:
            return comm.allreduce(correct) / 100

    def right(comm):
        correct = comm.allreduce(10 + comm.rank)
        if comm.rank == 0:
            return correct / 100


@pair("stuck", "deadlock")
class ABroadcastAroundAMessage:
    def wrong(comm):
        if comm.rank == 0:
            x = comm.bcast("settings", root=0)
            comm.send(1, dest=1)
        else:
            comm.recv(source=0)
            x = comm.bcast(None, root=0)
        return x

    def right(comm):
        x = comm.bcast("settings" if comm.rank == 0 else None, root=0)
        if comm.rank == 0:
            comm.send(1, dest=1)
        else:
            comm.recv(source=0)
        return x


@pair("stuck", "deadlock")
class ABarrierBeforeTheReceive:
    def wrong(comm):
        if comm.rank == 0:
            comm.send(1, dest=1)
        comm.Barrier()
        if comm.rank == 1:
            return comm.recv(source=0)

    def right(comm):
        request = comm.isend(1, dest=1) if comm.rank == 0 else None
        comm.Barrier()
        if comm.rank == 1:
            return comm.recv(source=0)
        request.wait()


@pair("deadlock", ranks=3)
class MoreStepsOnOneRank:
    """The data doesn't divide evenly, and each batch ends with an allreduce."""

    def wrong(comm):
        total = 0
        for start in range(0, 7 + comm.rank, 4):
            total += comm.allreduce(start)
        return total

    def right(comm):
        total, steps = 0, comm.allreduce(-(-(7 + comm.rank) // 4), op=MPI.MAX)
        for step in range(steps):
            total += comm.allreduce(4 * step)
        return total


@pair("mismatch", "deadlock")
class BlockingMeetsNonblocking:
    def wrong(comm):
        x = np.ones(2)
        if comm.rank == 0:
            comm.Ibcast(x, root=0).Wait()
        else:
            comm.Bcast(x, root=0)

    def right(comm):
        x = np.full(2, comm.rank)
        comm.Ibcast(x, root=0).Wait()
        return x


# Buffering


@pair("stuck")
class BothSendFirst:
    def wrong(comm):
        theirs = np.empty(10)
        comm.Send(np.full(10, comm.rank, float), dest=1 - comm.rank)
        comm.Recv(theirs, source=1 - comm.rank)
        return theirs

    def right(comm):
        theirs = np.empty(10)
        partner = 1 - comm.rank
        comm.Sendrecv(np.full(10, comm.rank, float), dest=partner, recvbuf=theirs, source=partner)
        return theirs


@pair("stuck")
class TagsInTheOtherOrder:
    def wrong(comm):
        if comm.rank == 0:
            comm.send("weights", dest=1, tag=1)
            comm.send("bias", dest=1, tag=2)
        else:
            bias = comm.recv(source=0, tag=2)
            return comm.recv(source=0, tag=1), bias

    def right(comm):
        if comm.rank == 0:
            comm.send("weights", dest=1, tag=1)
            comm.send("bias", dest=1, tag=2)
        else:
            weights = comm.recv(source=0, tag=1)
            return weights, comm.recv(source=0, tag=2)


@pair("stuck")
class SendsToItself:
    def wrong(comm):
        comm.send("a note", dest=comm.rank)
        return comm.recv(source=comm.rank)

    def right(comm):
        request = comm.irecv(source=comm.rank)
        comm.send("a note", dest=comm.rank)
        return request.wait()


# Parameter matching


@pair("mismatch")
class EachIsItsOwnRoot:
    def wrong(comm):
        return comm.bcast(comm.rank, root=comm.rank)

    def right(comm):
        return comm.bcast(comm.rank, root=0)


@pair("mismatch", ranks=3)
class TwoOperations:
    def wrong(comm):
        return comm.allreduce(comm.rank, op=MPI.SUM if comm.rank else MPI.MAX)

    def right(comm):
        return comm.allreduce(comm.rank, op=MPI.MAX)


@pair("mismatch")
class GradientsOfTwoLengths:
    def wrong(comm):
        gradient = np.ones(10 + comm.rank)
        comm.Allreduce(MPI.IN_PLACE, gradient)
        return gradient

    def right(comm):
        gradient = np.ones(10)
        comm.Allreduce(MPI.IN_PLACE, gradient)
        return gradient


@pair("mismatch")
class TwoTypesInABroadcast:
    def wrong(comm):
        weights = np.zeros(4, dtype=np.float32 if comm.rank else np.float64)
        comm.Bcast(weights, root=0)

    def right(comm):
        weights = np.zeros(4, dtype=np.float32)
        comm.Bcast(weights, root=0)


@pair("message")
class TwoTypesInAMessage:
    def wrong(comm):
        if comm.rank == 0:
            comm.Send(np.arange(3), dest=1)
        else:
            x = np.empty(3)
            comm.Recv(x, source=0)
            return x

    def right(comm):
        if comm.rank == 0:
            comm.Send(np.arange(3.0), dest=1)
        else:
            x = np.empty(5)
            comm.Recv(x, source=0)
            return x[:3]


@pair("message")
class TooLittleRoom:
    def wrong(comm):
        if comm.rank == 0:
            comm.Send(np.ones(6), dest=1)
        else:
            comm.Recv(np.empty(5), source=0)

    def right(comm):
        if comm.rank == 0:
            comm.Send(np.ones(6), dest=1)
        else:
            status = MPI.Status()
            comm.Probe(source=0, status=status)
            x = np.empty(status.Get_count(MPI.DOUBLE))
            comm.Recv(x, source=0)
            return x


@pair("message", "error")
class AnArrayReceivedAsAnObject:
    def wrong(comm):
        if comm.rank == 0:
            comm.Send(np.ones(6), dest=1)
        else:
            return comm.recv(source=0)

    def right(comm):
        if comm.rank == 0:
            comm.send(np.ones(6), dest=1)
        else:
            return comm.recv(source=0)


@pair("deadlock", "stuck")
class AnotherTag:
    def wrong(comm):
        if comm.rank == 0:
            comm.send(1, dest=1, tag=7)
        else:
            return comm.recv(source=0, tag=8)

    def right(comm):
        if comm.rank == 0:
            comm.send(1, dest=1, tag=7)
        else:
            return comm.recv(source=0, tag=7)


@pair("mismatch", ranks=3)
class NoRoomForEveryone:
    def wrong(comm):
        rows = np.empty(4) if comm.rank == 0 else None
        comm.Gather(np.ones(2), rows, root=0)

    def right(comm):
        rows = np.empty((3, 2)) if comm.rank == 0 else None
        comm.Gather(np.full(2, comm.rank, float), rows, root=0)
        return rows


# Invalid parameter


@pair("error", ranks=3)
class ANeighborThatIsNotThere:
    def wrong(comm):
        return comm.sendrecv(comm.rank, dest=comm.rank + 1, source=comm.rank - 1)

    def right(comm):
        right = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
        left = comm.rank - 1 if comm.rank else MPI.PROC_NULL
        return comm.sendrecv(comm.rank, dest=right, source=left)


@pair("mismatch", ranks=3)
class AListOfAnotherLength:
    def wrong(comm):
        return comm.scatter([1, 2] if comm.rank == 0 else None, root=0)

    def right(comm):
        return comm.scatter([1, 2, 3] if comm.rank == 0 else None, root=0)


@pair("error")
class AListWhereAnArrayBelongs:
    def wrong(comm):
        x = [0.0, 0.0]
        comm.Bcast(x, root=0)
        return x

    def right(comm):
        x = np.array([0.0, comm.rank])
        comm.Bcast(x, root=0)
        return x


# Message race


@pair("deadlock", ranks=3)
class AnySourceThenANamedOne:
    def wrong(comm):
        if comm.rank == 0:
            first = comm.recv(source=MPI.ANY_SOURCE)
            return first, comm.recv(source=2)
        comm.send("done", dest=0)

    def right(comm):
        if comm.rank == 0:
            first = comm.recv(source=1)
            return first, comm.recv(source=2)
        comm.send("done", dest=0)


@pair("race", ranks=4)
class ResultsInTheOrderTheyCome:
    def wrong(comm):
        if comm.rank == 0:
            return [comm.recv(source=MPI.ANY_SOURCE) for _ in range(comm.size - 1)]
        comm.send(comm.rank**2, dest=0)

    def right(comm):
        if comm.rank == 0:
            status, results = MPI.Status(), [0] * comm.size
            for _ in range(comm.size - 1):
                result = comm.recv(source=MPI.ANY_SOURCE, status=status)
                results[status.source] = result
            return results
        comm.send(comm.rank**2, dest=0)


@pair("message", "race", ranks=3)
class TheProbedMessageAndAnotherOne:
    def wrong(comm):
        if comm.rank:
            comm.Send(np.ones(comm.rank), dest=0)
            return None
        status, sums = MPI.Status(), []
        for _ in range(2):
            comm.Probe(source=MPI.ANY_SOURCE, status=status)
            x = np.empty(status.Get_count(MPI.DOUBLE))
            comm.Recv(x, source=MPI.ANY_SOURCE)
            sums.append(x.sum())
        return sorted(sums)

    def right(comm):
        if comm.rank:
            comm.Send(np.ones(comm.rank), dest=0)
            return None
        status, sums = MPI.Status(), []
        for _ in range(2):
            comm.Probe(source=MPI.ANY_SOURCE, status=status)
            x = np.empty(status.Get_count(MPI.DOUBLE))
            comm.Recv(x, source=status.source)
            sums.append(x.sum())
        return sorted(sums)


@pair("race", "deadlock", ranks=3)
class TwoStepsMixed:
    """A quick worker's second result is taken for the slow one's first."""

    def wrong(comm):
        if comm.rank:
            for step in range(2):
                comm.send(10 * step + comm.rank, dest=0)
            return None
        return [sum(comm.recv(source=MPI.ANY_SOURCE) for _ in range(2)) for step in range(2)]

    def right(comm):
        if comm.rank:
            for step in range(2):
                comm.send(10 * step + comm.rank, dest=0, tag=step)
            return None
        return [sum(comm.recv(source=MPI.ANY_SOURCE, tag=step) for _ in range(2)) for step in range(2)]


@pair("deadlock", ranks=3)
class BufferingOvertakes:
    """Rank 2's message can be first at rank 1 only if MPI buffers what rank 0 sends there."""

    def wrong(comm):
        if comm.rank == 0:
            comm.send("a", dest=1)
            comm.send("b", dest=2)
        elif comm.rank == 1:
            comm.recv(source=MPI.ANY_SOURCE)
            comm.recv(source=2)
        else:
            comm.recv(source=0)
            comm.send("c", dest=1)

    def right(comm):
        if comm.rank == 0:
            comm.ssend("a", dest=1)
            comm.send("b", dest=2)
        elif comm.rank == 1:
            comm.recv(source=MPI.ANY_SOURCE)
            comm.recv(source=2)
        else:
            comm.recv(source=0)
            comm.send("c", dest=1)


@pair("error", ranks=3)
class TheFirstIsSaidToBeRankOne:
    def wrong(comm):
        if comm.rank == 0:
            status = MPI.Status()
            total = comm.recv(source=MPI.ANY_SOURCE, status=status)
            assert status.Get_source() == 1
            return total + comm.recv(source=MPI.ANY_SOURCE)
        comm.send(1, dest=0)

    def right(comm):
        if comm.rank == 0:
            status = MPI.Status()
            total = comm.recv(source=MPI.ANY_SOURCE, status=status)
            assert status.Get_source() in (1, 2)
            return total + comm.recv(source=MPI.ANY_SOURCE)
        comm.send(1, dest=0)


@pair("race", ranks=3)
class ABroadcastSeparatesNothing:
    """A broadcast doesn't keep the messages after it from those before it: its root may leave at once."""

    def wrong(comm):
        if comm.rank == 1:
            requests = [comm.irecv(source=MPI.ANY_SOURCE) for _ in range(2)]
        if comm.rank == 2:
            requests = [comm.isend("before", dest=1)]
        comm.bcast("settings" if comm.rank == 0 else None, root=0)
        if comm.rank == 0:
            requests = [comm.isend("after", dest=1)]
        return MPI.Request.waitall(requests)

    def right(comm):
        if comm.rank == 1:
            requests = [comm.irecv(source=2), comm.irecv(source=0)]
        if comm.rank == 2:
            requests = [comm.isend("before", dest=1)]
        comm.bcast("settings" if comm.rank == 0 else None, root=0)
        if comm.rank == 0:
            requests = [comm.isend("after", dest=1)]
        return MPI.Request.waitall(requests)


# Local concurrency


@pair("reuse")
class OverwrittenWhileItIsSent:
    def wrong(comm):
        x = np.full(3, 1.0 + comm.rank)
        if comm.rank == 0:
            request = comm.Isend(x, dest=1)
            x *= 2
            request.Wait()
        else:
            comm.Recv(x, source=0)
        return x

    def right(comm):
        x = np.full(3, 1.0 + comm.rank)
        if comm.rank == 0:
            request = comm.Isend(x, dest=1)
            request.Wait()
            x *= 2
        else:
            comm.Recv(x, source=0)
        return x


@pair("reuse")
class ReadBeforeItIsThere:
    def wrong(comm):
        x = np.zeros(3)
        if comm.rank == 0:
            comm.Send(np.ones(3), dest=1)
            return None
        request = comm.Irecv(x, source=0)
        total = x.sum()
        request.Wait()
        return total

    def right(comm):
        x = np.zeros(3)
        if comm.rank == 0:
            comm.Send(np.ones(3), dest=1)
            return None
        request = comm.Irecv(x, source=0)
        request.Wait()
        return x.sum()


@pair("reuse")
class WrittenWhileItIsReceived:
    def wrong(comm):
        x = np.zeros(3)
        partner = 1 - comm.rank
        request = comm.Irecv(x, source=partner)
        x[0] = comm.rank
        comm.Send(x, dest=partner)
        request.Wait()
        return x

    def right(comm):
        x, mine = np.zeros(3), np.full(3, comm.rank, float)
        partner = 1 - comm.rank
        request = comm.Irecv(x, source=partner)
        comm.Send(mine, dest=partner)
        request.Wait()
        return x


# Request lifecycle


@pair("note")
class ASendNeverWaitedFor:
    def wrong(comm):
        x = np.ones(3)
        if comm.rank == 0:
            comm.Isend(x, dest=1)
        else:
            comm.Recv(x, source=0)

    def right(comm):
        x = np.ones(3)
        if comm.rank == 0:
            comm.Isend(x, dest=1).Wait()
        else:
            comm.Recv(x, source=0)


@pair("reuse", "note")
class AReceiveNeverWaitedFor:
    def wrong(comm):
        x = np.zeros(3)
        if comm.rank == 0:
            comm.Send(np.ones(3), dest=1)
        else:
            comm.Irecv(x, source=0)
        return x

    def right(comm):
        x = np.zeros(3)
        if comm.rank == 0:
            comm.Send(np.ones(3), dest=1)
        else:
            comm.Irecv(x, source=0).Wait()
        return x
