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
seen["loss"] = losses
seen["differ"] = differ
seen["sent"] = sent[1:]
seen["sent elsewhere"] = others.bytes_sent
seen["kept"] = kept
seen["norms"] = sum(p.numel() for name, p in tokens[2:-2].named_parameters() if "norm" in name or ".out.b" in name)
seen["biases"] = sum(p.numel() for name, p in tokens.named_parameters() if name.endswith("down.bias"))
"""


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.exhaustive)])
def on(request, team):
    """Run lines after the notebook's cells on as many ranks; what they have seen, by rank."""
    if team.n != request.param:
        team.restart(request.param)
    return lambda lines: team.run(measure, program(), lines, timeout=240)  # the first optimizer loads much of PyTorch


def an_allreduce(ranks: int, nbytes: int = TOKENS_BYTES) -> float:
    return 2 * (ranks - 1) / ranks * nbytes


def test_layers_and_a_trained_network(on):
    by_rank = on(LAYERS)
    for seen in by_rank:
        assert seen["MLP"] < ROUNDING and seen["trained"] < TRAINED
        assert seen["MLP bytes"] == (an_allreduce(len(by_rank)),) * 2
        assert seen["allreduces"] == (2, 4) and seen["summed once"] == (2, 2)


@pytest.mark.exhaustive
def test_a_plan_with_one_input_for_attention_computes_and_sends_the_same(on):
    for seen in on(PYTORCH):
        assert seen["apart"] < ROUNDING and seen["bytes"][0] == seen["bytes"][1]


def test_every_mesh_is_one_process_and_sends_what_the_formulas_say(on):
    by_rank = on(MESHES)
    for seen in by_rank:
        meshes = [name for name in seen if not name.endswith("sent")]
        assert len(meshes) == len(by_rank).bit_length()
        for mesh in meshes:
            data, tensor, numbers, in_row, in_column = seen[f"{mesh} sent"]
            assert seen[mesh] < TRAINED
            assert in_row == 3 * 4 * an_allreduce(tensor, TOKENS_BYTES // data)
            assert abs(in_column - an_allreduce(data, 4 * numbers)) <= 4 * 2 * data, "parts differ by a number"


def test_shared_tokens_send_what_an_allreduce_sends(on):
    by_rank = on(TOKENS)
    ranks = len(by_rank)
    four = 4 * an_allreduce(ranks, 64 * 24 * 64 * 4)
    for seen in by_rank:
        whole, tensors, tokens = seen["ways"]
        assert [tensors[2:4], tokens[2:4]] == [[four, 0], [four, an_allreduce(ranks, 4 * seen["numbers"])]]
        assert max(tensors[1], tokens[1]) < ROUNDING and whole[1:4] == [0, 0, 0]
        assert tokens[4] < tensors[4] < whole[4], "each keeps less for the backward pass"
