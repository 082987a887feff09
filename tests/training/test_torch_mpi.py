"""The process group over MPI: every operation against NumPy and gloo, the bytes of DDP and FSDP, and how it fails.

Trainings over it are in test_ladder.py and test_ladder_sharded.py, ranks that fail in a notebook in test_faults.py.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from training.launching import rank_environment, run_bounded, run_script

from workshop_lib.models import torch_cnn
from workshop_lib.ranks import mpi

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).with_name("torch_mpi_runs.py")
SHAPES = [tuple(parameter.shape) for parameter in torch_cnn.build(seed=1).parameters()]
LAYERS = [SHAPES[:2], SHAPES[2:4], SHAPES[4:]]  # the weights and biases of each
STEPS = 2


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.exhaustive)])
def of_ranks(request, tmp_path_factory):
    """What each rank wrote, by rank: of its operations, and of its bytes."""
    folder = tmp_path_factory.mktemp("torch_mpi")
    run_script(request.param, SCRIPT, folder, timeout_s=150)
    names = ("operations", "bytes")
    ranks = range(request.param)
    return [{name: json.loads((folder / f"{name}.{rank}.json").read_text()) for name in names} for rank in ranks]


def test_operations_give_what_numpy_and_gloo_give(of_ranks):
    for rank, outcomes in enumerate(of_ranks):
        assert len(outcomes["operations"]) == 29
        for name, given in outcomes["operations"].items():
            expected = np.array(given.pop("expected"))
            assert "mpi" in given and ("gloo" in given or "mean" in name or "columns" in name)
            for kind, values in given.items():
                assert np.array(values).shape == expected.shape, f"{name} over {kind} on rank {rank}"
                assert np.allclose(values, expected, rtol=1e-6), f"{name} over {kind} on rank {rank}"


def in_shards(shapes, ranks):
    """Bytes of these parameters in FSDP, which shards by rows and fills up the last shard."""
    return sum(4 * ranks * math.ceil(rows / ranks) * math.prod(rest) for rows, *rest in shapes)


def test_ddp_sends_a_ring_s_share_of_its_gradients(of_ranks):
    ranks, whole = len(of_ranks), sum(4 * math.prod(shape) for shape in SHAPES)
    for outcomes in of_ranks:
        assert outcomes["bytes"]["ddp"]["asked_for"] == STEPS * [["allreduce", whole]]
    sent = [outcomes["bytes"]["ddp"]["bytes"] for outcomes in of_ranks]
    assert sum(sent) == STEPS * 2 * (ranks - 1) * whole, "all ranks together; their parts differ by a number at most"
    assert max(sent) - min(sent) <= STEPS * 2 * 4


def test_fsdp_gathers_each_layer_twice_and_scatters_its_gradients_once(of_ranks):
    ranks = len(of_ranks)
    layers = [in_shards(shapes, ranks) for shapes in LAYERS]
    for outcomes in of_ranks:
        asked_for = outcomes["bytes"]["fsdp"]["asked_for"]
        assert sorted(asked_for) == sorted(
            STEPS * [[name, nbytes] for nbytes in layers for name in ("allgather", "allgather", "reduce-scatter")]
        )
        assert outcomes["bytes"]["fsdp"]["bytes"] == STEPS * 3 * (ranks - 1) * sum(layers) / ranks


ALONE = """\
import os, sys, time, torch, torch.distributed as dist
from workshop_lib.training import torch_mpi
from workshop_lib.training import rendezvous, world
here = world.detect()
rendezvous.join_process_group(here, torch.device("cpu"))
group = rendezvous.join_over_mpi(here, torch.device("cpu"))
ones = torch.ones(1000)
dist.all_reduce(ones, group=group)
group.timeout_s = 1.0
if here.rank == 1:
    time.sleep(3)
    sys.exit()
for _ in range(2):
    try:
        dist.all_reduce(ones, group=group)
    except torch_mpi.CommError as error:
        print(error)
print("ends", flush=True)
"""


def test_a_rank_that_waits_alone_says_so_and_ends(tmp_path):
    (tmp_path / "alone.py").write_text(ALONE)
    command = [*mpi.mpiexec(), "-n", 2, sys.executable, tmp_path / "alone.py"]
    [(_, output)] = run_bounded([command], [rank_environment()], 60)
    alone = "Iallreduce had not ended after 1 s on rank 0"
    assert f"{alone}: the other ranks may have failed or be elsewhere. Restart all ranks." in output
    assert f"Iallreduce can't start, because {alone}. Restart all ranks." in output
    assert "ends" in output
