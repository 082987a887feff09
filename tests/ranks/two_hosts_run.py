"""On the first of two hosts of a PBS job: ranks on both meet, lose a host, and come again; prints what they did.

It prints lines of JSON: about two ranks; how many of eight are on each host; the error once a host is gone, and whether
all ranks are gone, too; and the same about fresh ranks, after they were stopped.
"""

import json
import socket
import time
from collections import Counter

import psutil

from workshop_lib import ranks
from workshop_lib.ranks.launch import processes

MESSAGE_BYTES = 5_000_000


def is_engine(process) -> bool:
    try:
        return "ipyparallel.engine" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def end_only_here(set_id: str) -> None:
    """The processes of another machine are out of reach: its ranks end with their launcher, or not at all."""
    processes.kill([process for process, _ in processes.marked(set_id) if not is_engine(process)])


def are_gone(set_id: str) -> bool:
    deadline = time.monotonic() + 10
    while any(is_engine(process) for process, _ in processes.marked(set_id)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def meet() -> list:
    """On a rank: where it is."""
    import socket

    from mpi4py import MPI

    from workshop_lib.machine.world import detect

    world = detect()
    return [socket.gethostname(), MPI.COMM_WORLD.allreduce(1), world.local_rank, world.local_size]


def leave_before_all_is_sent() -> int | None:
    """Rank 0 is done with its call while most of its message waits for the receiver; what rank 1 got."""
    import time

    import __ranks__
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        __ranks__.request = comm.isend(b"x" * MESSAGE_BYTES, dest=1)
        return None
    time.sleep(0.5)
    return len(comm.recv(source=0))


def meet_again_and_again() -> None:
    from mpi4py import MPI

    while True:
        MPI.COMM_WORLD.Barrier()


def say(**answer) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    processes.end = end_only_here
    team = ranks.start()
    places = team.run(meet, show=False)
    [_, received] = team.run(leave_before_all_is_sent, timeout=20, show=False)
    say(places=places, received=received)
    team.restart(8)
    say(**Counter(team.run(socket.gethostname, show=False)))
    try:
        team.run(meet_again_and_again, show=False, timeout=60)
    except ranks.RankError as error:
        say(error=str(error), gone=are_gone(team._set_id))
    team.restart(2)
    ranks.stop()
    say(gone=are_gone(team._set_id))


if __name__ == "__main__":
    main()
