"""Emulate this machine from its own measured latencies and bandwidths, and compare with its own measured times.

Two ranks measure messages, then a ring, a tree and an overlapped step. Then they emulate a machine with these messages,
and the same functions run again in emulated time. Other programs only ever make a measured time longer, so all
measured times are the least of many rounds.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable

import cloudpickle
import numpy as np
from emulation import emulated, machine

from workshop_lib import ranks
from workshop_lib.collectives import ring
from workshop_lib.lessons.forecasting.fit import relative_least_squares

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import the benchmarks

ROUNDS = 200
STEP_ROUNDS = 60
MESSAGES = [2**k for k in range(18, 22)]  # 256 KiB to 2 MiB; MPI sends shorter ones in a different way
SIZES = [2**19, 2**20, 2**21]  # bytes of the arrays that a ring and a tree sum
LAYERS, WIDTH = 4, 1024
FORWARD_S, BACKWARD_S = 5e-3, 10e-3
BUCKETS = {"four messages": 4, "one message": 100}  # MiB per bucket


def exchange(comm, array: np.ndarray, spare: np.ndarray) -> None:
    """Both ranks send this array, and receive the other's."""
    comm.Sendrecv(array, 1 - comm.rank, recvbuf=spare, source=1 - comm.rank)


def there_and_back(comm, array: np.ndarray, _) -> None:
    """Rank 0 sends this array, and rank 1 sends it back: twice one message."""
    for sender in (0, 1):
        if comm.rank == sender:
            comm.Send(array, 1 - comm.rank)
        else:
            comm.Recv(array, 1 - comm.rank)


def tree(comm, array: np.ndarray, spare: np.ndarray) -> None:
    """Rank 0 sums both arrays and sends the sum back: a tree of two ranks, up and down."""
    if comm.rank == 1:
        comm.Send(array, 0)
        comm.Recv(array, 0)
    else:
        comm.Recv(spare, 1)
        array += spare
        comm.Send(array, 1)


def by_ring(comm, array: np.ndarray, _) -> None:
    ring.allreduce(comm, array)


def messages_s(rounds: int, measured: bool) -> dict[tuple[str, int], float]:
    """On a rank: the least seconds of each way to send, by its name and bytes."""
    from mpi4py import MPI

    ways: dict[str, tuple[Callable, list[int]]] = {"ring": (by_ring, SIZES), "tree": (tree, SIZES)}
    if measured:
        ways |= {"exchange": (exchange, MESSAGES), "there and back": (there_and_back, MESSAGES)}
    comm = MPI.COMM_WORLD
    zeros = np.zeros(MESSAGES[-1] // 4, np.float32)
    spare = np.zeros_like(zeros)
    least: dict[tuple[str, int], float] = defaultdict(lambda: float("inf"))
    for _ in range(rounds):
        for name, (way, sizes) in ways.items():
            for nbytes in sizes:
                zeros.fill(0)  # in this core's cache, like everything that has just been computed
                comm.Barrier()
                began = time.perf_counter()
                way(comm, zeros[: nbytes // 4], spare[: nbytes // 4])
                taken_s = comm.allreduce(time.perf_counter() - began, MPI.MAX)
                least[name, nbytes] = min(least[name, nbytes], taken_s)
    return dict(least)


def steps_s(rounds: int, measured: bool, slowness: float = 1.0) -> dict[str, float]:
    """On a rank: the least seconds of a step of DDP whose layers sleep, or take emulated time, and of allreduces.

    A layer sleeps because a device computes without a core of the processor, which then has both cores for messages.
    slowness: by which factor layers take longer in emulated time than they sleep.
    """
    import torch
    import torch.distributed as dist
    from torch import nn

    from workshop_lib.emulation.clock import CLOCK
    from workshop_lib.machine import world
    from workshop_lib.training import rendezvous

    cpu = torch.device("cpu")
    group = rendezvous.join_process_group(world.detect(), cpu)
    if not measured:
        group = rendezvous.join_over_mpi(world.detect(), cpu)
    compute = time.sleep if measured else CLOCK.compute
    CLOCK.slowness = slowness
    CLOCK.profiled = True  # what PyTorch itself computes here is not what the step's time is about

    class Computes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            compute(FORWARD_S)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            compute(BACKWARD_S)
            return gradient

    class Layer(nn.Linear):
        def forward(self, x):
            return Computes.apply(super().forward(x))

    def slowest(seconds: float) -> float:
        taken = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        return taken.item()

    def built(bucket_mb: float):
        torch.manual_seed(0)
        network = nn.Sequential(*[Layer(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
        settings = {"bucket_cap_mb": bucket_mb, "gradient_as_bucket_view": True}
        return nn.parallel.DistributedDataParallel(network, process_group=group, **settings)

    models = {name: built(bucket_mb) for name, bucket_mb in BUCKETS.items()}
    models["no message"] = models["one message"].module
    x = torch.ones(1, WIDTH)

    def step(model) -> None:
        model(x).sum().backward()

    ways: dict[str, Callable] = {name: lambda model=model: step(model) for name, model in models.items()}
    if measured:
        for nbytes in (2**21, 2**22, 2**23, 2**24):
            tensor = torch.ones(nbytes // 4)
            ways[f"allreduce of {nbytes}"] = lambda tensor=tensor: dist.all_reduce(tensor, group=group)
    least: dict[str, float] = defaultdict(lambda: float("inf"))
    for way in ways.values():
        way()  # DDP orders its buckets after the first step
    for _ in range(rounds):
        for name, way in ways.items():
            dist.barrier()
            began = time.perf_counter()
            way()
            least[name] = min(least[name], slowest(time.perf_counter() - began))
    return dict(least)


def line(seconds: dict[int, float], latencies: int = 1) -> tuple[float, float]:
    """Alpha and beta of seconds by bytes: `latencies` alpha + bytes beta."""
    terms = {"alpha": [float(latencies)] * len(seconds), "beta": list(seconds)}
    fit = relative_least_squares(terms, list(seconds.values()))
    return fit["alpha"], fit["beta"]


def proof(report) -> None:
    team = ranks.start(2)
    rows: list[list[str]] = []
    errors: list[float] = []

    def compared(what: str, emulated_s: float, real_s: float) -> None:
        errors.append(abs(emulated_s / real_s - 1))
        rows.append([what, f"{1e3 * real_s:.3f}", f"{1e3 * emulated_s:.3f}", f"{emulated_s / real_s - 1:+.1%}"])

    real = team.run(messages_s, ROUNDS, True, show=False, timeout=300)[0]
    both = line({nbytes: real["exchange", nbytes] for nbytes in MESSAGES})
    one = line({nbytes: real["there and back", nbytes] / 2 for nbytes in MESSAGES})
    for way, constants in (("ring", both), ("tree", one)):
        here = machine(1 / constants[1], constants[0], own_time=True)
        found = emulated(team, here, messages_s, ROUNDS, False)[0]
        for nbytes in SIZES:
            compared(f"{way} allreduce of {nbytes / 2**20:g} MiB", found[way, nbytes], real[way, nbytes])
    steps = team.run(steps_s, STEP_ROUNDS, True, show=False, timeout=300)[0]
    sums = {int(name.rpartition(" ")[2]): seconds for name, seconds in steps.items() if "allreduce" in name}
    alpha_s, beta = line(sums, latencies=2)
    slowness = steps["no message"] / (LAYERS * (FORWARD_S + BACKWARD_S))
    found = emulated(team, machine(1 / beta, alpha_s), steps_s, 3, False, slowness)[0]
    for name in BUCKETS:
        compared(f"step of DDP with its gradients in {name}", found[name], steps[name])
    report("emulated: two ranks here / measured - 1, worst", "0.1 or less", [max(errors)], rows=rows)
