"""Measure how exact emulated ranks are, and what they cost; write records to build/emulated_bench.jsonl.

Each proof runs real code on real ranks, and compares its emulated time with a formula worked out by hand. The times are
the same on every machine; only those of `real_cost` are measured.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import numpy as np
import psutil

from workshop_lib import ranks
from workshop_lib.machine.catalogue import Link, Machine
from workshop_lib.machine.cost_model import overlapped_step_s
from workshop_lib.notebook.results import records
from workshop_lib.notebook.results.sweep import SweepText, sweep
from workshop_lib.training.collectives import ring
from workshop_lib.training.options import EMULATED, TrainOptions

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import the benchmarks

RANKS = (2, 4, 8, 16)
BYTES = [8 * 8**k for k in range(0, 9, 1)][::2] + [2**22, 2**26]  # 8 B to 64 MiB, which 16 ranks can share
ALPHA_S = 200e-6
FORWARD_S, LAYERS, WIDTH, SCALE = 10e-3, 8, 64, 64
LAYER_BYTES = WIDTH * WIDTH * 4 * SCALE
BUSY = "while True: pass"
SCORE_S = 1e-5  # a device computes a score of attention in this time


def machine(bytes_per_s: float, alpha_s: float = ALPHA_S, own_time: bool = False) -> Machine:
    """One device per node, and all collectives in rings, as the formulas below have it."""
    link = Link(alpha_s, 1 / bytes_per_s)
    return Machine("flat", "Flat", "", "", 1, "ring across nodes", link, link, "", own_time=own_time)


def on_rank(flat: Machine | str, scale: float, function, arguments: tuple):
    """On a rank: the function's result on this machine, which is emulated meanwhile."""
    from workshop_lib.machine.emulation import session

    session.start(flat).places.scale = scale
    try:
        return function(*arguments)
    finally:
        session.stop()
        session.start_if_asked()


def emulated(team, flat: Machine | str, function, *arguments, scale: float = 1.0) -> list:
    return team.run(on_rank, flat, scale, function, arguments, show=False, timeout=300)


def ring_s(nbytes: int) -> float:
    """On a rank: the emulated seconds of a ring allreduce by hand."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    array = np.ones(max(nbytes // 4 // SCALE, comm.size), np.float32)
    began = time.perf_counter()
    ring.allreduce(comm, array)
    return comm.allreduce(time.perf_counter() - began, MPI.MAX) * 1.0


def step_s(kind: str, steps: int = 3, bucket_mib: float = 1.0) -> float:
    """On a rank: the emulated seconds of the last step of eight layers under DDP or FSDP2.

    bucket_mib: of DDP. It orders its buckets after the first step.
    """
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    from workshop_lib.machine import world
    from workshop_lib.machine.emulation import device
    from workshop_lib.training import rendezvous

    cpu = torch.device("cpu")
    rendezvous.join_process_group(world.detect(), cpu)
    group = rendezvous.join_over_mpi(world.detect(), cpu)
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    network = nn.Sequential(*[device.takes(layer, FORWARD_S, 2 * FORWARD_S) for layer in layers])
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(network, process_group=group, bucket_cap_mb=bucket_mib / SCALE)
    else:
        for layer in network:
            fully_shard(layer, mesh=DeviceMesh.from_group(group, "cpu"))
        model = fully_shard(network, mesh=DeviceMesh.from_group(group, "cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        taken = time.perf_counter() - began
    return taken


def bubble(name: str, micro_batches: int, chunks: int) -> float:
    """On a rank: the share of a step in which PyTorch's own pipeline schedule leaves this rank idle."""
    import torch
    from torch import nn
    from torch.distributed import pipelining

    from workshop_lib.machine import world
    from workshop_lib.machine.emulation import session
    from workshop_lib.training import rendezvous

    cpu = torch.device("cpu")
    rendezvous.join_process_group(world.detect(), cpu)
    group = rendezvous.join_over_mpi(world.detect(), cpu)
    rank, size = group.rank(), group.size()

    class FirstLayer(nn.Module):
        """Its input has a gradient even on the first stage, so that all stages do the same work."""

        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(WIDTH))
            self.layer = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, x):
            return self.layer(x + self.shift)

    torch.manual_seed(0)
    stages = [
        pipelining.PipelineStage(FirstLayer(), rank + chunk * size, size * chunks, cpu, group=group)
        for chunk in range(chunks)
    ]
    schedule_of = getattr(pipelining, name)
    schedule = schedule_of(
        stages if chunks > 1 or "ZeroBubble" in name else stages[0], micro_batches, loss_fn=lambda out, _: out.sum()
    )
    rows = 2
    emulation = session.current()
    emulation.begin_device()
    emulation.device.mode.declared_flop_s = FORWARD_S / chunks / (2 * rows * WIDTH * WIDTH)
    x = torch.ones(rows * micro_batches, WIDTH)
    for _ in range(2):  # the first step also exchanges shapes
        torch.distributed.barrier(group)
        began = time.perf_counter()
        if rank == 0:
            schedule.step(x, target=x)
        else:
            schedule.step(target=x)
        torch.distributed.barrier(group)
        taken = time.perf_counter() - began
    return 1 - 3 * FORWARD_S * micro_batches / taken


def in_a_ring(order: str) -> tuple[float, float]:
    """On a rank: how long it computes in a causal ring attention, and how long the ring takes."""
    import torch
    from mpi4py import MPI

    from workshop_lib.machine.emulation.clock import CLOCK
    from workshop_lib.training.data.shard import parts

    from lessons.context_parallelism.blocks import BlockAttention, contiguous
    from lessons.context_parallelism.ring import pass_on

    CLOCK.profiled = True  # only what is charged below
    comm = MPI.COMM_WORLD
    tokens = 16 * comm.size

    def zigzag(rank: int) -> torch.Tensor:
        halves = parts(tokens, 2 * comm.size)
        return torch.cat([torch.arange(tokens)[halves[part]] for part in (rank, 2 * comm.size - 1 - rank)])

    every = range(comm.size)
    positions = [zigzag(rank) if order == "zigzag" else contiguous(tokens, rank, comm.size) for rank in every]
    attend = BlockAttention(positions, comm.rank)
    query = torch.ones(1, 1, 16, 4)
    block = torch.stack([query, query])
    comm.Barrier()
    began = time.perf_counter()
    for step in range(comm.size):
        if step > 0:
            block = pass_on(block, comm)
        scores = attend.scores
        attend(query, block[0], block[1], (comm.rank - step) % comm.size)
        CLOCK.compute(SCORE_S * (attend.scores - scores))
    comm.Barrier()
    return SCORE_S * attend.scores, time.perf_counter() - began


def attention(team, report) -> None:
    """The idle share of ring attention. With contiguous parts, rank r has r + 1 of n blocks to compute."""
    expected = {"contiguous": (team.n - 1) / (2 * team.n), "zigzag": 0.0}
    for order, formula in expected.items():
        ran = emulated(team, machine(1e15, 1e-12), in_a_ring, order)
        idle = 1 - statistics.mean(computed_s / taken_s for computed_s, taken_s in ran)
        what = f"emulated idle share of ring attention on {team.n} ranks, {order}, percentage points from the formula"
        report(what, "0.5 or less", [100 * abs(idle - formula)], found=idle)


def worst(pairs: list[tuple[float, float]]) -> float:
    return max(abs(found / expected - 1) for found, expected in pairs)


def proofs(report) -> None:
    """Compare with theory: the ring, overlapped steps, ZeRO-3, and the bubbles of pipelines."""
    rings = []
    ddp = []
    hidden = []
    shown = []
    for n in RANKS:
        team = ranks.start(n)
        for nbytes in BYTES:
            real = max(nbytes // 4 // SCALE, n) // n * n * 4 * SCALE
            found = emulated(team, machine(1e9), ring_s, real, scale=SCALE)[0]
            rings.append((found, 2 * (n - 1) * (ALPHA_S + real / n / 1e9)))
        for bytes_per_s in (1e8, 1e9):
            flat = machine(bytes_per_s)
            expected = overlapped_step_s(
                LAYERS * FORWARD_S, 2 * LAYERS * FORWARD_S, flat.allreduce_s(n, LAYER_BYTES), LAYERS
            )
            ddp.append((emulated(team, flat, step_s, "ddp", scale=SCALE)[0], expected))
        fast, slow = machine(1e9), machine(2e7)
        gather_s = fast.allgather_s(n, LAYER_BYTES)
        hidden.append((emulated(team, fast, step_s, "fsdp", scale=SCALE)[0], 3 * LAYERS * FORWARD_S + 2 * gather_s))
        slow_s = slow.allgather_s(n, LAYER_BYTES)
        shown.append((emulated(team, slow, step_s, "fsdp", scale=SCALE)[0], 3 * LAYERS * slow_s))
        if n == 4:
            pipelines(team, report)
            attention(team, report)
            repeatable(team, report)
    report("emulated ring by hand, worst error", "0.001 or less", [worst(rings)], pairs=rings)
    report("emulated DDP step with overlap, worst error", "0.001 or less", [worst(ddp)], pairs=ddp)
    report("emulated FSDP2 step, gathers hidden, worst error", "0.001 or less", [worst(hidden)], pairs=hidden)
    report("emulated FSDP2 step, gathers exposed, worst error", "0.001 or less", [worst(shown)], pairs=shown)


def pipelines(team, report) -> None:
    """The idle share of PyTorch's schedules on four ranks and eight micro-batches, in percentage points."""
    p, m = 4, 8
    expected = {
        ("ScheduleGPipe", 1): (p - 1) / (m + p - 1),
        ("Schedule1F1B", 1): (p - 1) / (m + p - 1),
        ("ScheduleInterleaved1F1B", 2): (p - 1) / (2 * m + p - 1),
        ("ScheduleInterleavedZeroBubble", 1): (p - 1) / (3 * m + p - 1),
    }
    for (name, chunks), formula in expected.items():
        found = emulated(team, machine(1e15, 1e-12), bubble, name, m, chunks)[0]
        report(
            f"emulated bubble of {name}, percentage points from the formula",
            "0.5 or less",
            [100 * abs(found - formula)],
            found=found,
        )


def repeatable(team, report) -> None:
    """Ten emulated steps beside programs that take both cores: by how much they differ, in seconds."""
    busy = [subprocess.Popen(["nice", sys.executable, "-c", BUSY]) for _ in range(2)]
    try:
        runs = [emulated(team, machine(1e8), step_s, "ddp", scale=SCALE) for _ in range(10)]
    finally:
        for process in busy:
            process.kill()
            process.wait(10)
    steps = [step for run in runs for step in run]
    report("emulated step, ten runs on busy cores, spread in s", "0", [max(steps) - min(steps)])


def real_cost(report) -> None:
    """What emulated ranks really take here: their start, a step of DDP on 16, a ring allreduce on 64, and memory."""
    for n, work, repeats in ((16, steps_of, 10), (64, rings_of, 10)):
        ranks.stop()
        began = time.perf_counter()
        team = ranks.start(n, machine="a100-ethernet")
        report(f"start of {n} emulated ranks, s", "measured", [time.perf_counter() - began])
        team.run(work, 1, timeout=900, show=False)  # imports what it needs
        began = time.perf_counter()
        team.run(work, repeats, timeout=900, show=False)
        what = "a step of DDP" if work is steps_of else "a ring allreduce"
        report(f"{what} on {n} emulated ranks, s", "measured", [(time.perf_counter() - began) / repeats])
        pids = [about["pid"] for about in team.about()]
        used = sum(psutil.Process(pid).memory_full_info().pss for pid in pids) / 2**30
        report(f"memory of {n} emulated ranks, GiB", "measured", [used])


def scaling(out: Path) -> None:
    """Write records of each backend on 1 to 16 emulated GPUs, with 64 images per GPU, for the README's figure."""
    named = {"epochs": 2, "train_samples": 4096, "machine": "a100-ethernet", "stands_for": "resnet-50"}
    options = [TrainOptions(backend=name, **named) for name in EMULATED]
    for record in sweep(ranks.start, [1, 2, 4, 8, 16], options, view=SweepText(runs_show=False)):
        records.write(out, record)


def steps_of(repeats: int) -> None:
    """On a rank: steps of eight layers under DDP."""
    step_s("ddp", repeats)


def rings_of(repeats: int) -> None:
    """On a rank: ring allreduces of 1 MiB by hand."""
    for _ in range(repeats):
        ring_s(2**20 * SCALE)
