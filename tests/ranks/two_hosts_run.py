"""On the first of two hosts of a PBS job: ranks on both meet, train, lose one, and come again; prints what they did.

It begins with a line of JSON about the ranks. Then it prints one for each line that comes in: of `train` the seconds of
a step and of its Allreduce, of `lose` the ranks on each host and then the error, of `die` the error; and after each of
`lose`, `die` and the end of its input, whether all ranks are gone.
"""

import json
import socket
import sys
import time
from collections import Counter

import psutil

from workshop_lib import ranks
from workshop_lib.ranks import processes
from workshop_lib.training.options import TrainOptions

STEPS, MESSAGE_BYTES = 15, 5_000_000
RANKS_PER_HOST = 4
OPTIONS = TrainOptions(backend="mpi", epochs=1, batch_size=32, train_samples=2 * 32 * STEPS)


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


def meet() -> dict:
    """On a rank: where it is, and the bytes of the network's parameters."""
    import socket

    from mpi4py import MPI

    from workshop_lib.machine.world import detect
    from workshop_lib.models import torch_cnn

    world = detect()
    size = sum(4 * parameter.numel() for parameter in torch_cnn.build(seed=1).parameters())
    together = MPI.COMM_WORLD.allreduce(1)
    return {"place": [socket.gethostname(), together, world.local_rank, world.local_size], "bytes": size}


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


def die() -> None:
    """Rank 1 is killed while rank 0 waits for it."""
    import os
    import signal

    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    MPI.COMM_WORLD.Barrier()


def train(team: ranks.Ranks) -> dict:
    record = team.train(OPTIONS, show=False)
    [epoch] = record["epochs"]
    seconds = {"step_s": epoch["seconds"] / STEPS, "communication_s": epoch["communication_s"] / STEPS}
    return seconds | {"digests": record["weights_sha256"]}


def lose_a_rank(team: ranks.Ranks) -> dict:
    try:
        team.run(die, show=False, timeout=60)
    except ranks.RankError as error:
        return {"error": str(error), "gone": are_gone(team._set_id)}
    return {}


def lose_a_host(team: ranks.Ranks) -> dict:
    """Start more ranks, say how many each host has, and wait until one host is gone; then start the old number."""
    team.restart(2 * RANKS_PER_HOST)
    hosts = team.run(socket.gethostname, show=False)
    print(json.dumps(Counter(hosts)), flush=True)
    answer = {}
    try:
        team.run(meet_again_and_again, show=False, timeout=60)
    except ranks.RankError as error:
        answer = {"error": str(error), "gone": are_gone(team._set_id)}
    team.restart(2)
    return answer


def meet_again_and_again() -> None:
    from mpi4py import MPI

    while True:
        MPI.COMM_WORLD.Barrier()


def main() -> None:
    processes.end = end_only_here
    team = ranks.start()
    met = team.run(meet, show=False)
    [_, received] = team.run(leave_before_all_is_sent, timeout=20, show=False)
    team.train(OPTIONS, show=False)  # the first run also pays for imports and connections
    about = {"places": [each["place"] for each in met], "bytes": met[0]["bytes"], "steps": STEPS, "received": received}
    print(json.dumps(about), flush=True)
    answers = {"train": train, "die": lose_a_rank, "lose": lose_a_host}
    for line in sys.stdin:
        print(json.dumps(answers[line.strip()](team)), flush=True)
    team.restart()
    ranks.stop()
    print(json.dumps({"gone": are_gone(team._set_id)}), flush=True)


if __name__ == "__main__":
    main()
