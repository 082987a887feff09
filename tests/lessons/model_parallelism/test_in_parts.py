"""What the cells of 11 compute on their ranks, on 2 and on 4: every difference to one process, and every byte.

The cells themselves run here, with the solutions in them. float32 has 24 bits, and sums are taken in another order, so
numbers differ in the last of them; training makes that grow. A wrong sum would differ in the first.
"""

import re
import sys

import cloudpickle
import pytest
from exercises.answers import code_cells

pytestmark = [pytest.mark.lesson("11"), pytest.mark.usefixtures("healthy")]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
NOTEBOOK = "11_model_parallelism"
DEFINED = ("ColumnParallel", "RowParallel", "cut_block", "TokenParallel", "Column", "add_up")
IMPORTS = """
from functools import partial
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy, linear
from workshop_lib.training.collectives.counting import CountingComm, counted
from lessons import model_parallelism as lesson
from lessons.model_parallelism import study
from lessons.model_parallelism.tensors import allgather, allreduce, both_ways, reduce_scatter, same, shard
from workshop_lib.training.models import vit
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
"""
ROUNDING, TRAINED = 1e-5, 1e-4  # of the largest number
TOKENS_BYTES = 64 * 20 * 64 * 4  # images, tokens, width, bytes


def program() -> str:
    """The notebook's cells that define these names, below what they import."""
    cells = [re.sub("^%%ranks.*", "", cell) for cell in code_cells(NOTEBOOK)[1]]
    chosen = [cell for cell in cells if re.search(rf"^(def|class) ({'|'.join(DEFINED)})\b", cell, re.MULTILINE)]
    return "\n".join([IMPORTS, *chosen])


def measure(program: str, lines: str) -> dict:
    """On a rank: run the notebook's cells, then `lines`, and return what these leave in `seen`."""
    names: dict = {"__name__": "notebook", "seen": {}}
    exec(program, names)
    exec(lines, names)
    return names["seen"]


LAYERS = """
torch.manual_seed(1)
whole, x = vit.Mlp(64), torch.randn(64, 20, 64)
counting = CountingComm(comm)
mine = nn.Sequential(ColumnParallel(whole.up, counting), nn.GELU(), RowParallel(whole.down, counting))
inputs = [x.clone().requires_grad_() for _ in range(2)]
outputs = mine(inputs[0]), whole(inputs[1])
forward = counting.bytes_sent
for output in outputs:
    output.square().sum().backward()
seen["MLP"] = study.largest([outputs[0], inputs[0].grad], [outputs[1], inputs[1].grad])
seen["MLP bytes"] = forward, counting.bytes_sent - forward
"""
PYTORCH = """
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
group, (images, labels) = study.process_group_over_mpi(), study.batch(0)
plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
plan |= {"attention.out": RowwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
plan |= {"attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())}
theirs, counting = study.network(), CountingComm(comm)
for block in theirs[1:-1]:
    parallelize_module(block, DeviceMesh.from_group(group, "cpu"), plan)
ours = cut_model(study.network(), counting, TensorsOnly)
cross_entropy(ours(images), labels).backward()
with counted(group) as sent:
    cross_entropy(theirs(images), labels).backward()
local = [p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad for p in theirs.parameters()]
seen["apart"] = study.largest([p.grad for p in ours.parameters()], local)
seen["bytes"] = counting.bytes_sent, sent.messages.bytes_sent
"""
TRAINED_IN_PARTS = """
seen.update(rows=rows, kept=kept)
uncut = [p for block in together[2:-2] for name, p in block.named_parameters() if "norm" in name]
uncut += [p for block in together[2:-2] for p in (block.attention.out.bias, block.mlp.down.bias)]
seen["uncut"] = sum(p.numel() for p in uncut)
"""


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.exhaustive)])
def on(request, team):
    """Run lines after the notebook's cells on as many ranks; what they have seen, by rank."""
    if team.n != request.param:
        team.restart(request.param)
    # The first optimizer loads much of PyTorch.
    return lambda lines, cells="": team.run(measure, cells or program(), lines, timeout=240)


def an_allreduce(ranks: int, nbytes: int = TOKENS_BYTES) -> float:
    return 2 * (ranks - 1) / ranks * nbytes


def test_an_mlp_of_two_layers(on):
    by_rank = on(LAYERS)
    for seen in by_rank:
        assert seen["MLP"] < ROUNDING
        assert seen["MLP bytes"] == (an_allreduce(len(by_rank)),) * 2


@pytest.mark.exhaustive
def test_a_plan_with_one_input_for_attention_computes_and_sends_the_same(on):
    for seen in on(PYTORCH):
        assert seen["apart"] < ROUNDING and seen["bytes"][0] == seen["bytes"][1]


def test_trained_networks_are_one_process_and_send_and_keep_what_the_page_says(on):
    by_rank = on(TRAINED_IN_PARTS)
    ranks = len(by_rank)
    for seen in by_rank:
        loss = seen["rows"]["one process"][0]
        for way in ("tensors", "tensors and tokens"):
            its_loss, differ, in_blocks, elsewhere = seen["rows"][way]
            assert abs(its_loss - loss) < ROUNDING * loss and differ < TRAINED
            assert in_blocks == 3 * 4 * an_allreduce(ranks)
            # The gradients that are parts of sums, and half an allreduce of the tokens at either end.
            both_ends = an_allreduce(ranks) + an_allreduce(ranks, 4 * seen["uncut"])
            assert elsewhere == (0 if way == "tensors" else both_ends)
        one, tensors, tokens = (list(kept.values()) for kept in seen["kept"].values())
        norms, read, *inside = one
        assert tensors == [norms, read, *(number / ranks for number in inside)]
        assert tokens == [norms / ranks, read, *(number / ranks for number in inside)]
        assert (read, inside[1], inside[2]) == (2, 1, 8)


@pytest.mark.parametrize("backward", ["scatter_sums", "gather"])
def test_a_wrong_backward_of_enter_or_leave_shows_in_the_trained_weights(on, backward):
    right = f"backward=self.{backward})"
    assert program().count(right) == 1
    wrong = program().replace(right, f"backward=lambda gradient: 2 * self.{backward}(gradient))")
    for seen in on(TRAINED_IN_PARTS, wrong):
        assert seen["rows"]["tensors"][1] < TRAINED < seen["rows"]["tensors and tokens"][1]
