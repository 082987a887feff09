"""The exercises of 06 accept the solutions, and reject wrong answers with the hint that names the mistake; and the ring
and the flat arrays that they are about."""

import sys
from functools import partial

import cloudpickle
import numpy as np
import pytest
import torch
from fake_mpi_ranks import run_on_threads
from judge.answers import solution, variant
from judge.verdicts import Verdicts
from mpi4py import MPI

from workshop_lib.judge.network import backward, batch, network, weights_of
from workshop_lib.lessons.mpi_basics import ring
from workshop_lib.lessons.mpi_basics.counting import CountingComm, rounds
from workshop_lib.lessons.zero_and_fsdp import judge as check
from workshop_lib.lessons.zero_and_fsdp import shares
from workshop_lib.training import memory

pytestmark = pytest.mark.usefixtures("healthy")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
NOTEBOOK = "06_zero_and_fsdp"
REDUCE = "total = ring.reduce_scatter(self.comm, gradient.numpy())"
GRADIENT_1 = "self.share.grad = torch.from_numpy(total / self.comm.size)"
GATHER = "ring.allgather(self.comm, self.weights.numpy())"
STEP = "self.optimizer.step()"
GRADIENT_2 = "self.shares[p].grad = torch.from_numpy(total / self.comm.size)"
DROP = "p.grad = None"
ALL_1 = "flat = gradient.numpy()"
SUM_1 = "flat[mine] = ring.reduce_scatter(self.comm, flat); ring.allgather(self.comm, flat)"
MINE_1 = "mine = ring.part(len(flat), self.comm.rank, self.comm.size)"
SUM_2 = "whole = gradient.numpy(); mine = ring.part(len(whole), self.comm.rank, self.comm.size)"


def changed(name: str, *replacements):
    """Makes the solved class with lines in it replaced, each by one line or several."""
    indented = [(old, new.replace("\n", "\n        ")) for old, new in replacements]
    return partial(variant, NOTEBOOK, name, *indented)


zero1, zero2 = partial(changed, "Zero1"), partial(changed, "Zero2")

RIGHT = {
    "Zero1, divided before": zero1(
        (REDUCE, "total = ring.reduce_scatter(self.comm, gradient.numpy() / self.comm.size)"),
        (GRADIENT_1, "self.share.grad = torch.from_numpy(total)"),
    ),
    "Zero2, adds up until the step": zero2(
        (
            GRADIENT_2,
            "mean, old = torch.from_numpy(total / self.comm.size), self.shares[p].grad\n"
            "self.shares[p].grad = mean if old is None else old + mean",
        ),
        (STEP, "self.optimizer.step(); self.optimizer.zero_grad()"),
    ),
}
WRONG = {
    "1: no allgather": (zero1((GATHER, "pass")), "with an allgather of the weights"),
    "1: allgather before the step": (
        zero1((STEP, "pass"), (GATHER, f"{GATHER}; {STEP}")),
        "with an allgather of the weights",
    ),
    "1: no step": (zero1((STEP, "pass")), "the step moves nothing"),
    "1: every rank alone": (
        zero1((REDUCE, f"{ALL_1}\ntotal = flat[ring.part(len(flat), self.comm.rank, 2)]"), (GATHER, "pass")),
        "no rank sent anything",
    ),
    "1: allreduce first": (
        zero1((REDUCE, f"{ALL_1}; {MINE_1}\n{SUM_1}\ntotal = flat[mine]")),
        "an allreduce of the gradients",
    ),
    "1: state for everything": (
        zero1(
            ("self.share = torch.nn.Parameter(self.weights[mine])", "self.share = self.weights[mine]"),
            ("make_optimizer([self.share])", "make_optimizer(self.parameters)"),
            (GRADIENT_1, f"{ALL_1}; {MINE_1}; flat[mine] = total / 2; ring.allgather(self.comm, flat); at = 0"),
            (
                STEP,
                "for p in self.parameters:\n"
                "    p.grad = torch.from_numpy(flat[at : at + p.numel()]).view_as(p); at += p.numel()\n"
                "self.optimizer.step()",
            ),
        ),
        "Make the optimizer for the shares",
    ),
    "1: state lost": (
        zero1((STEP, "self.optimizer.step(); self.optimizer.state.clear()")),
        "the optimizer's state lost",
    ),
    "2: p.grad kept": (zero2((DROP, "pass")), "The whole gradient is still there"),
    "2: no gradient for the share": (zero2((GRADIENT_2, "pass")), "the step moves nothing"),
    "2: reduced in step": (
        zero2(
            (f"{REDUCE}\n        {GRADIENT_2}\n        {DROP}", "pass"),
            (
                STEP,
                "for p, share in self.shares.items():\n"
                "    flat = shares.flat_gradient([p], self.comm.size)\n"
                "    share.grad = torch.from_numpy(ring.reduce_scatter(self.comm, flat.numpy()) / 2)\n"
                "self.optimizer.step()",
            ),
        ),
        "belongs in `reduce`, not in `step`",
    ),
    "2: all dropped with the last one": (
        zero2(
            (
                DROP,
                "self.seen = [*getattr(self, 'seen', []), p]\n"
                "if len(self.seen) % 4 == 0:\n"
                "    for seen in self.seen: seen.grad = None",
            )
        ),
        "Drop each gradient as soon as it is reduced",
    ),
    "2: a third is kept": (zero2((DROP, "p.grad = None if p.numel() > 3 else p.grad")), "Keep only the share"),
    "2: allreduce": (
        zero2(
            (
                REDUCE,
                f"{SUM_2}\nwhole[mine] = ring.reduce_scatter(self.comm, whole)\n"
                "ring.allgather(self.comm, whole); total = whole[mine]",
            )
        ),
        "an allreduce of the gradients",
    ),
    "2: adds to the step before": (
        zero2(
            (
                GRADIENT_2,
                "self.sums = getattr(self, 'sums', {})\n"
                "self.sums[p] = self.sums.get(p, 0) + torch.from_numpy(total / self.comm.size)\n"
                "self.shares[p].grad = self.sums[p]",
            )
        ),
        "the gradient of the step before",
    ),
}
NEVER_ENDS = {
    "1: allgather on rank 0 alone": (
        zero1((GATHER, f"if self.comm.rank == 0: {GATHER}")),
        "same calls in the same order",
    ),
    "2: rank 0 waits for a message that nobody sends": (
        zero2((REDUCE, f"if self.comm.rank == 0: self.comm.recv(source=1, tag=99)\n{REDUCE}")),
        "once for every parameter",
    ),
}


class TestZero(Verdicts):
    check, notebook = check, NOTEBOOK
    names = ("Zero1", "Zero2")
    right, wrong, never_ends = RIGHT, WRONG, NEVER_ENDS


def test_parts_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="7 elements do not divide by 2 ranks: pad them with 1 zeros"):
        ring.part(7, 0, 2)


def frozen(make) -> dict:
    """On a rank: three steps of a network whose first layer is frozen, with a class of the notebook and without."""
    models = [network() for _ in range(2)]
    for model in models:
        model[0].requires_grad_(False)
    zero, optimizer = (
        make(models[0], CountingComm(MPI.COMM_WORLD), check.make_sgd),
        check.make_sgd(models[1].parameters()),
    )
    for step in range(3):
        backward(models[0], [batch(MPI.COMM_WORLD.rank, step)])
        zero.step()
        backward(models[1], [batch(rank, step) for rank in range(MPI.COMM_WORLD.size)])
        optimizer.step()
    return {"apart": float(np.abs(weights_of(models[0]) - weights_of(models[1])).max())}


@pytest.mark.parametrize("name", ["Zero1", "Zero2"])
def test_a_frozen_layer_stays_as_it_is_and_the_others_train(team, name):
    assert max(seen["apart"] for seen in team.run(frozen, solution(NOTEBOOK, name))) < 1e-12


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_halves_of_a_ring(size):
    n = 24

    def program(comm):
        counting = CountingComm(comm)
        array = np.arange(n, dtype=np.float64) * (1 + comm.rank)
        before = array.copy()
        part = ring.reduce_scatter(counting, array)
        assert np.array_equal(array, before)
        events = len(counting.log)
        gathered = np.full(n, np.nan)
        gathered[ring.part(n, comm.rank, size)] = part
        ring.allgather(counting, gathered)
        return part, gathered, (counting.log[:events], counting.log[events:])

    by_rank = run_on_threads(program, size)
    total = np.arange(n) * sum(range(1, size + 1))
    for rank, (part, gathered, _) in enumerate(by_rank):
        assert np.array_equal(part, total[ring.part(n, rank, size)])
        assert np.array_equal(gathered, total)
    for half in zip(*(logs for *_, logs in by_rank), strict=True):
        for log in half:
            assert sum(event.nbytes for event in log) == 8 * n * (size - 1) // size
            assert sum(event.kind == "send" for event in log) == size - 1
        assert rounds(half) == size - 1


def test_released_arrays_take_no_memory_and_come_back_for_the_views_that_autograd_keeps():
    layer = torch.nn.Linear(3, 2)
    before, inputs = layer.weight.detach().clone(), torch.ones(1, 3, requires_grad=True)
    flat = shares.flat_weights([layer.weight, layer.bias], 5)
    assert len(flat) == 10 and flat[8:].tolist() == [0, 0] and torch.equal(layer.weight, before)
    values, output = flat.clone(), layer(inputs).sum()
    shares.release(flat)
    assert memory.storage_bytes([layer.weight.data]) == 0
    shares.fill(flat, values)
    output.backward()
    assert torch.equal(inputs.grad[0], before.sum(0))
    layer.bias.grad = None
    gradient = shares.flat_gradient([layer.weight, layer.bias], 5)
    assert torch.equal(gradient, torch.tensor([1.0] * 6 + [0.0] * 4)), "zeros where backward left none"
