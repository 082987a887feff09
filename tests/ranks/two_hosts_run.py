"""On the first of two hosts: ranks on both train, and again each time a line comes in; prints what they did.

A line of JSON for each run: the hosts, seconds a step, seconds of it in Allreduce, and the network's bytes.
"""

import json
import sys

from workshop_lib import ranks
from workshop_lib.training.options import TrainOptions

STEPS, MESSAGE_BYTES = 15, 5_000_000
OPTIONS = TrainOptions(backend="mpi", epochs=1, batch_size=32, train_samples=2 * 32 * STEPS)


def parameter_bytes() -> int:
    from workshop_lib.models import torch_cnn

    return sum(4 * parameter.numel() for parameter in torch_cnn.build(seed=1).parameters())


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


def main() -> None:
    team = ranks.start()
    [_, received] = team.run(leave_before_all_is_sent, timeout=20, show=False)
    team.train(OPTIONS, show=False)  # the first run also pays for imports and connections
    size = team.run(parameter_bytes, show=False)[0]
    hosts = [about["host"] for about in team.about()]
    print(json.dumps({"hosts": hosts, "bytes": size, "steps": STEPS, "received": received}), flush=True)
    for _ in sys.stdin:
        record = team.train(OPTIONS, show=False)
        [epoch] = record["epochs"]
        seconds = {"step_s": epoch["seconds"] / STEPS, "communication_s": epoch["communication_s"] / STEPS}
        print(json.dumps(seconds | {"digests": record["weights_sha256"]}), flush=True)
    ranks.stop()


if __name__ == "__main__":
    main()
