"""Times, then records Horovod's steps of a network with many small tensors. mpiexec starts it on every rank:

    mpiexec -n 2 env HOROVOD_TIMELINE=DYNAMIC [NAME=VALUE …] \\
        python -m lessons.horovod_pytorch.horovod_steps OUT STEPS ONE_LATE

03_horovod_pytorch runs it through `figures.measure`. Rank 0 writes OUT.json, the milliseconds of each step, and
OUT.timeline.json, Horovod's recording of fifteen more steps. If ONE_LATE is 1, one rank, which rank 0 draws by lot,
starts each of these fifteen late, and OUT.json says which rank, and how many milliseconds. Horovod reads some settings
when it is imported and others when it starts, so each choice of settings needs new processes.
"""

import json
import random
import sys
import time
from pathlib import Path

from mpi4py import MPI  # isort: skip  (initializes MPI before Horovod does)
import horovod.torch as hvd
import torch
from torch import nn

LAYERS = 8
WIDTH = 64
BATCH = 64
WARM_UP = 5
RECORDED = 15
PAUSE_S = 0.02  # pause between recorded steps, as if the ranks computed something else


def network() -> nn.Module:
    """A network with 16 parameter tensors of at most 16 KiB each, and the same weights on every rank."""
    torch.manual_seed(1)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))


def timed(model: nn.Module, optimizer, inputs: torch.Tensor) -> float:
    """Milliseconds that the backward pass and averaging take in one step. All ranks call it, and start together."""
    model.zero_grad()
    loss = model(inputs).square().mean()
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    loss.backward()
    optimizer.synchronize()
    return 1000 * (time.perf_counter() - start)


def record(path: str, model: nn.Module, optimizer, inputs: torch.Tensor, late: dict) -> None:
    hvd.start_timeline(path, mark_cycles=True)
    time.sleep(0.05)
    for _ in range(RECORDED):
        MPI.COMM_WORLD.Barrier()
        if hvd.rank() == late["late_rank"]:
            time.sleep(late["late_ms"] / 1000)
        model.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.synchronize()
        time.sleep(PAUSE_S)
    hvd.stop_timeline()
    time.sleep(0.05)  # a separate thread of Horovod's writes the file


def main(out: str, steps: int, one_late: bool) -> None:
    torch.set_num_threads(1)
    model = network()
    inputs = torch.randn(BATCH, WIDTH)
    hvd.init()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
    step_ms = [timed(model, optimizer, inputs) for _ in range(WARM_UP + steps)][WARM_UP:]
    late = {"late_rank": random.randrange(hvd.size()), "late_ms": random.uniform(20, 40) if one_late else 0.0}
    late = MPI.COMM_WORLD.bcast(late)  # rank 0's
    record(f"{out}.timeline.json", model, optimizer, inputs, late)
    if hvd.rank() == 0:
        Path(f"{out}.json").write_text(json.dumps({"step_ms": step_ms, **late}), encoding="utf-8")
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")
