"""Run on three ranks: what in several lessons needs ranks, all in one start of them.

comm_runs.py FOLDER    rank 0 writes FOLDER/NAME.json for each part
"""

import json
import pickle
import sys
import threading
from pathlib import Path

import compression_runs
import feeding_runs
import numpy as np
import staleness_runs
from mpi4py import MPI

from workshop_lib.lessons.gradient_noise import noise_scale
from workshop_lib.lessons.less_communication import trainings as less_communication
from workshop_lib.lessons.less_communication.staleness import wait
from workshop_lib.lessons.less_communication.trainings import Rounds
from workshop_lib.lessons.mpi_basics.counting import CountingComm, rounds

WORLD = MPI.COMM_WORLD
FOLDER = Path(sys.argv[1])
RIGHT, LEFT = (WORLD.rank + 1) % WORLD.size, (WORLD.rank - 1) % WORLD.size


class Counting:
    """The communicator, with the elements of each Allreduce written down; it has nothing else."""

    def __init__(self):
        self.size, self.elements = WORLD.size, []

    def Allreduce(self, array, total):
        self.elements.append(array.size)
        WORLD.Allreduce(array, total)


def of_rank(rank, dtype):
    return np.random.default_rng(rank).normal(size=7).astype(dtype)


def averaged(dtype):
    comm, own = Counting(), of_rank(WORLD.rank, dtype)
    mean, norms = noise_scale.averaged(own, comm)
    everyone = np.stack([of_rank(rank, dtype) for rank in range(WORLD.size)])
    expected = everyone.mean(axis=0)
    return {
        "dtype": str(mean.dtype),
        "off": float(np.abs(mean - expected).max()),
        "small off": abs(norms.small_sq - float((everyone**2).sum(axis=1).mean())),
        "big off": abs(norms.big_sq - float(expected @ expected)),
        "elements": comm.elements,
        "kept": bool(np.array_equal(own, of_rank(WORLD.rank, dtype))),
    }


def noise():
    return {dtype: WORLD.gather(averaged(dtype)) for dtype in ("float64", "float32")}


def arrays(comm):
    incoming = np.empty(10, np.float32)
    comm.Sendrecv(np.full(10, comm.rank, np.float32), RIGHT, recvbuf=incoming, source=LEFT)
    request = comm.Isend([np.zeros(3), MPI.DOUBLE], RIGHT)
    comm.Recv(np.empty(3), LEFT)
    request.Wait()
    return comm.bytes_sent, comm.messages_sent, rounds(WORLD.allgather(comm.log)), float(incoming[0])


def objects(comm):
    got = comm.sendrecv({"from": comm.rank}, dest=RIGHT, source=LEFT)
    if comm.rank == 0:
        comm.send([1, 2, 3], dest=1)
    elif comm.rank == 1:
        got = comm.recv(source=0)
    pickled = len(pickle.dumps({"from": comm.rank})) + (comm.rank == 0) * len(pickle.dumps([1, 2, 3]))
    return comm.bytes_sent - pickled, comm.messages_sent, got


def any_source(comm):
    if comm.rank == 0:
        for _ in range(2):
            comm.Recv(np.empty(5))
    else:
        comm.Send(np.zeros(5), 0)
    return comm.bytes_sent, sorted(event.peer for event in comm.log), rounds(WORLD.allgather(comm.log))


def waited_for(comm, incoming, step):
    receive = comm.Irecv(incoming, LEFT)
    send = comm.Isend(np.full(2, float(comm.rank)), RIGHT)
    send.Wait()
    receive.Wait()


def waited_for_together(comm, incoming, step):
    send = comm.Isend(np.full(2, float(comm.rank)), RIGHT, step)
    MPI.Request.Waitall([comm.Irecv(incoming, LEFT, step), send])


def from_any_rank_during_a_send(comm, incoming, step):
    receive = comm.Irecv(incoming)
    comm.Ssend(np.full(2, float(comm.rank)), RIGHT)
    receive.Wait()
    WORLD.Barrier()  # else the next step's message could come first


def tested(comm, incoming, step):
    receive = comm.Irecv(incoming, LEFT)
    send = comm.Isend(np.full(2, float(comm.rank)), RIGHT)
    while not (receive.Test() and send.Test()):
        pass
    receive.Wait()


def of_objects(comm, incoming, step):
    receive = comm.irecv(source=LEFT)
    comm.isend(np.full(2, float(comm.rank)), RIGHT).wait()
    incoming[:] = receive.wait()


UNDER_WAY = [waited_for, waited_for_together, from_any_rank_during_a_send, tested, of_objects]


def under_way(way):
    comm, incoming = CountingComm(WORLD), np.empty(2)
    for step in range(3):
        way(comm, incoming, step)
    kinds = sorted(event.kind[-4:] for event in comm.log)
    return rounds(WORLD.allgather(comm.log)), kinds, incoming.tolist(), comm.messages_sent


def never_waited_for(comm):
    request = comm.Irecv(np.empty(1), LEFT)
    comm.Send(np.zeros(1), RIGHT)
    kinds = [event.kind for event in comm.log]
    request.Wait()
    return kinds + [event.kind for event in comm.log]


def receive(comm, like):
    """What the call of this name sends: an array or an object."""
    return comm.Recv(np.empty(1), LEFT) if like[0].isupper() else comm.recv(source=LEFT)


def synchronous(comm):
    """By call: whether it is still under way before its receiver has begun, and whether afterwards."""
    under_way = {}
    for name in ("Send", "Ssend", "send", "ssend"):
        sending = threading.Thread(target=getattr(comm, name), args=(np.zeros(1), RIGHT))
        sending.start()
        sending.join(0.1)
        before = sending.is_alive()
        WORLD.Barrier()
        receive(comm, name)
        sending.join(10)
        under_way[name] = before, sending.is_alive()
    for name in ("Isend", "Issend", "isend", "issend"):
        request = getattr(comm, name)(np.zeros(1), RIGHT)
        before = not request.Test()
        WORLD.Barrier()
        receive(comm, name)
        request.Wait()
        under_way[name] = before, False
    return under_way


def refused(comm):
    errors = []
    for name in ("Allreduce", "bcast", "Isendrecv"):
        try:
            getattr(comm, name)(None)
        except AttributeError as error:
            errors.append(str(error))
    return errors


def counting():
    cases = [arrays, objects, any_source, never_waited_for, synchronous, refused]
    found = {case.__name__: WORLD.gather(case(CountingComm(WORLD))) for case in cases}
    return found | {way.__name__: WORLD.gather(under_way(way)) for way in UNDER_WAY}


def staleness():
    """On the first two ranks, and on all."""
    found = {}
    for size in (2, WORLD.size):
        comm = WORLD.Split(0 if WORLD.rank < size else 1)
        if WORLD.rank < size:
            (FOLDER / str(size)).mkdir(exist_ok=True)
            found[size] = staleness_runs.outcomes(comm, FOLDER / str(size))
        wait(WORLD.Ibarrier(), "the first two ranks", 60, nap_s=0.005)  # a rank with nothing to do sleeps
    return found


def less():
    """Records of four steps: with every gradient, with the mean of the weights after each step and after three, and
    with a hundredth of the entries."""
    more = {"steps": 4, "batch": 16, "data_dir": str(FOLDER / "mnist")}
    ways = {"fp32": less_communication.ways()["fp32"], "1": Rounds(1), "3": Rounds(3)}
    ways["top 1 %"] = less_communication.ways()["top 1 %"]
    return [less_communication.train(name, way, **more) for name, way in ways.items()]


PARTS = {
    "feeding": lambda: feeding_runs.outcomes(FOLDER),  # first: others start threads, whose reads would count
    "noise": noise,
    "counting": counting,
    "compression": compression_runs.outcomes,
    "staleness": staleness,
    "less": less,
}
for name, part in PARTS.items():
    found = part()
    if WORLD.rank == 0:
        (FOLDER / f"{name}.json").write_text(json.dumps(found))
