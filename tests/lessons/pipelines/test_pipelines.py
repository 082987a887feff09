"""The exercises of 11b accept every right way, and reject wrong ones with the hint that names the mistake; and what a
stage does is the same on real ranks, with every schedule."""

import sys
from functools import partial

import cloudpickle
import pytest
from exercises.answers import solution

from workshop_lib import ranks

from lessons.pipelines import judge as check
from lessons.pipelines import orders

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
NOTEBOOK = check.NOTEBOOK


def on_ranks(make, size: int) -> dict:
    """On a rank: how far the gradients of each schedule are from one process, what was kept, and what was sent."""
    import torch
    from mpi4py import MPI
    from torch.nn.functional import cross_entropy

    from workshop_lib.training.collectives.counting import CountingComm
    from workshop_lib.training.models import vit

    from lessons.pipelines import pipeline

    torch.set_num_threads(1)
    comm, tokens, width, m = MPI.COMM_WORLD, 25, 64, 8
    images = torch.randn(8, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(8) % 10

    def network(stages):
        torch.manual_seed(1)
        blocks = 2 * size // stages
        counts = [blocks + (stage == 0) + (stage == stages - 1) for stage in range(stages)]
        return pipeline.split(vit.vit(10, depth=2 * size), counts)

    [whole] = network(1)
    loss = cross_entropy(whole(images), labels)
    loss.backward()
    right = {name: p.grad for name, p in whole.named_parameters()}
    largest = max(gradient.abs().max() for gradient in right.values())
    seen = {}
    for schedule, chunks in ((orders.gpipe, 1), (orders.one_f_one_b, 1), (partial(orders.interleaved, chunks=2), 2)):
        counting = CountingComm(comm)
        stages = pipeline.stages_of_rank(make, network(size * chunks), counting)
        for stage in stages:
            stage.load(images, labels, m)
        order = schedule(comm.rank, size, m)
        taken = pipeline.step(stages, order, comm, count_bytes=True)
        apart = [(p.grad - right[name]).abs().max() for each in stages for name, p in each.layers.named_parameters()]
        neighbors = sum((not stage.first) + (not stage.last) for stage in stages)
        seen[chunks if chunks > 1 else schedule.__name__] = {
            "apart": float(max(apart) / largest),
            "loss": abs(taken.loss - loss.item()) if stages[-1].last else 0.0,
            "kept": (taken.most_kept, orders.most_alive(order)),
            "bytes": (counting.bytes_sent, neighbors * 8 * tokens * width * 4),
            "messages": (counting.messages_sent, neighbors * m),
            "saved_bytes": taken.saved_bytes,
            "spans": taken.spans,
        }
    return seen


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_every_schedule_does_on_ranks_what_one_process_does(size):
    team = ranks.start(size)
    for of_rank in team.run(on_ranks, solution(NOTEBOOK, "MyStage"), size, timeout=120):
        for seen in of_rank.values():
            assert seen["apart"] < 1e-5, "measured: 1e-6"
            assert seen["loss"] < 1e-5
            for what in ("kept", "bytes", "messages"):
                got, formula = seen[what]
                assert got == formula
            starts = [span.start for span in seen["spans"]]
            assert starts == sorted(starts) and all(span.end > span.start for span in seen["spans"])
        kept = of_rank["gpipe"]["saved_bytes"] / of_rank["one_f_one_b"]["saved_bytes"]
        counts = of_rank["gpipe"]["kept"][0] / of_rank["one_f_one_b"]["kept"][0]
        assert kept == pytest.approx(counts, rel=0.15), "memory follows the count"


def beside_pytorch(make, size: int) -> list[tuple]:
    """On a rank: for each of PyTorch's schedules how far its gradients are from those by hand, what it did, and what
    ours does."""
    import torch
    from mpi4py import MPI
    from torch.distributed import pipelining
    from torch.nn.functional import cross_entropy

    from lessons.pipelines import pipeline, with_pytorch

    with_pytorch.join()
    torch.set_num_threads(1)
    comm, m, seen = MPI.COMM_WORLD, 2 * size, []
    images, labels = torch.randn(2 * m, 6, generator=torch.Generator().manual_seed(1)), torch.arange(2 * m) % 6

    def network(stages):
        torch.manual_seed(1)
        return [torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for _ in range(stages)]

    for kind, schedule, chunks in (
        (pipelining.ScheduleGPipe, orders.gpipe, 1),
        (pipelining.Schedule1F1B, orders.one_f_one_b, 1),
        (pipelining.ScheduleInterleaved1F1B, partial(orders.interleaved, chunks=2), 2),
    ):
        stages = pipeline.stages_of_rank(make, network(size * chunks), comm, (6,))
        for stage in stages:
            stage.load(images, labels, m)
        order = schedule(comm.rank, size, m)
        pipeline.step(stages, order, comm)
        theirs, done = network(size * chunks)[comm.rank :: size], []
        numbers = range(comm.rank, size * chunks, size)
        pairs = zip(theirs, numbers, strict=True)
        wrapped = [
            with_pytorch.RecordedStage(part, number, size * chunks, done, number // size) for part, number in pairs
        ]
        run = kind(wrapped if chunks > 1 else wrapped[0], n_microbatches=m, loss_fn=cross_entropy)
        run.step(*([images] if comm.rank == 0 else []), target=labels)
        own = [p.grad for stage in stages for p in stage.layers.parameters()]
        other = [p.grad for part in theirs for p in part.parameters()]
        apart = max(float((a - b).abs().max()) for a, b in zip(own, other, strict=True))
        seen.append((apart, done, [tuple(orders.MicroBatchPass(*each)) for each in order]))
    return seen


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_pytorch_does_the_same_in_the_same_order(size):
    team = ranks.start(size)
    for of_rank in team.run(beside_pytorch, solution(NOTEBOOK, "MyStage"), size, timeout=120):
        for apart, done, ours in of_rank:
            assert apart < 1e-7, "measured: 0"
            assert done == ours
