"""The process group over MPI: every operation against NumPy, the bytes of DDP and FSDP, and how it fails.

Training runs over it are in test_ladder.py and test_ladder_sharded.py, ranks that fail in a notebook in test_faults.py.
"""

import math
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from our_ranks import on_every_rank
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training.launching import rank_environment, run_bounded

from workshop_lib import ranks
from workshop_lib.machine import world
from workshop_lib.machine.emulation import comm
from workshop_lib.ranks.launch import which_mpi
from workshop_lib.training import rendezvous, torch_mpi
from workshop_lib.training.collectives import counting
from workshop_lib.training.models import torch_cnn

pytestmark = pytest.mark.full

ROOT = 1
SHAPES = [tuple(parameter.shape) for parameter in torch_cnn.build(seed=1).parameters()]
LAYERS = [SHAPES[:2], SHAPES[2:4], SHAPES[4:]]  # the weights and biases of each
STEPS = 2


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.exhaustive)])
def team(request):
    return ranks.start(request.param)


def joined() -> dist.ProcessGroup:
    """On a rank: the process group over MPI."""
    here, device = world.detect(), torch.device("cpu")
    rendezvous.join_process_group(here, device)
    over_mpi = rendezvous.join_over_mpi(here, device)
    assert rendezvous.join_over_mpi(here, device) is over_mpi, "made once"
    return over_mpi


def empty(rows: int) -> torch.Tensor:
    return torch.full((rows, 3), -1.0)


def operations(rank: int, size: int) -> dict:
    """Of each operation, how it is called on a group, and what this rank must then have. Two rows belong to each."""
    every = [np.arange(6.0 * size, dtype=np.float32).reshape(2 * size, 3) + 10 * each for each in range(size)]
    mine, total = slice(2 * rank, 2 * rank + 2), np.sum(every, axis=0)
    bf16 = torch.tensor(np.array(every)).bfloat16()
    next_rank, last_rank = (rank + 1) % size, (rank - 1) % size

    def own(dtype=torch.float32) -> torch.Tensor:
        return torch.tensor(every[rank], dtype=dtype)

    def parts() -> list[torch.Tensor]:
        return list(own().split(2))

    def in_place(operation, *arguments, dtype=torch.float32):
        """Call an operation that changes this rank's tensor."""

        def call(group):
            tensor = own(dtype)
            operation(tensor, *arguments, group)
            return tensor

        return call

    allreduce = partial(in_place, dist.all_reduce)
    broadcast = partial(in_place, dist.broadcast, ROOT)

    def allreduce_of_columns(group):
        tensor = own()
        dist.all_reduce(tensor[:, 1:], group=group)
        return tensor

    def two_under_way(group):
        tensors = own(), 2 * own()
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        for work in reversed(works):
            work.wait()
        assert all(work.is_completed() for work in works)
        return torch.cat(tensors)

    def allgather(group):
        gathered = [empty(2 * size) for _ in range(size)]
        dist.all_gather(gathered, own(), group)
        return torch.cat(gathered)

    def allgather_tensor(group):
        gathered = empty(2 * size * size)
        dist.all_gather_into_tensor(gathered, own(), group)
        return gathered

    def allgather_objects(group):
        gathered = [None] * size
        dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 50 * rank}, group)
        return torch.tensor([each["rank"] + len(each["text"]) for each in gathered])

    def scatter(group):
        tensor = empty(2)
        dist.scatter(tensor, parts() if rank == ROOT else None, ROOT, group)
        return tensor

    def reduce_scatter(group):
        tensor = empty(2)
        dist.reduce_scatter(tensor, parts(), group=group)
        return tensor

    def reduce_scatter_tensor(kind):
        def call(group):
            tensor = empty(2)
            dist.reduce_scatter_tensor(tensor, own(), kind, group)
            return tensor

        return call

    def all_to_all_tensor(group):
        arrived = empty(2 * size)
        dist.all_to_all_single(arrived, own(), group=group)
        return arrived

    def all_to_all_uneven(group):
        """Every rank sends rank r its first r rows."""
        tensor, arrived = torch.cat([own()[:each] for each in range(size)]), empty(rank * size)
        dist.all_to_all_single(arrived, tensor, [rank] * size, list(range(size)), group=group)
        return arrived

    def ring_of_sends(group):
        tensor = empty(2 * size)
        going = dist.P2POp(dist.isend, own(), next_rank, group, tag=3)
        coming = dist.P2POp(dist.irecv, tensor, last_rank, group, tag=3)
        for work in dist.batch_isend_irecv([going, coming]):
            work.wait()
        return tensor

    def in_two_halves(group):
        """Groups of a half of the ranks each, which do not wait for each other."""
        half = 2 * rank // size
        halves = [dist.new_group(list(each), backend=dist.get_backend(group)) for each in np.split(np.arange(size), 2)]
        tensor = own()
        for _ in range(1 + half):
            dist.all_reduce(tensor, dist.ReduceOp.MAX, halves[half])
        return tensor

    op = dist.ReduceOp
    return {
        "allreduce": (allreduce(op.SUM), total),
        "allreduce, mean": (allreduce(op.AVG), total / size),
        "allreduce, bfloat16": (allreduce(op.SUM, dtype=torch.bfloat16), bf16.float().sum(0).bfloat16()),
        "allreduce, bool": (allreduce(op.MAX, dtype=torch.bool), np.max(every, axis=0) > 0),
        "allreduce, columns": (allreduce_of_columns, np.c_[every[rank][:, :1], total[:, 1:]]),
        "two allreduces under way": (two_under_way, np.concatenate([total, 2 * total])),
        "broadcast": (broadcast(), every[ROOT]),
        "allgather": (allgather, np.concatenate(every)),
        "allgather, one tensor": (allgather_tensor, np.concatenate(every)),
        "allgather, objects": (allgather_objects, 51 * np.arange(size)),
        "scatter": (scatter, every[ROOT][mine]),
        "reduce-scatter": (reduce_scatter, total[mine]),
        "reduce-scatter, one tensor": (reduce_scatter_tensor(op.SUM), total[mine]),
        "reduce-scatter, mean": (reduce_scatter_tensor(op.AVG), total[mine] / size),
        "all-to-all, one tensor": (all_to_all_tensor, np.concatenate([each[mine] for each in every])),
        "all-to-all, uneven": (all_to_all_uneven, np.concatenate([each[:rank] for each in every])),
        "sends in a ring": (ring_of_sends, every[last_rank]),
        "groups of a half": (
            in_two_halves,
            np.max(every[: size // 2] if 2 * rank < size else every[size // 2 :], axis=0),
        ),
    }


COUNTED = ("allreduce", "allgather", "reduce-scatter", "broadcast", "all-to-all, uneven", "sends in a ring")


@pytest.mark.parametrize("name", operations(rank=0, size=2))
@on_every_rank
def test_an_operation_gives_what_numpy_gives(name):
    group = joined()
    call, expected = operations(dist.get_rank(), dist.get_world_size())[name]
    given = [call(group)]
    if name in COUNTED:
        with counting.counted(group):
            given.append(call(group))
    expected = torch.as_tensor(expected).double().numpy()
    for tensor in given:
        assert tensor.shape == expected.shape
        assert np.allclose(tensor.double().numpy(), expected, rtol=1e-6)


def sent_in(group, model: nn.Module, forward) -> counting.CountedCollectives:
    """What two steps of training send, after two that also make what all need."""

    def steps():
        for _ in range(STEPS):
            forward(torch.ones(4, 1, 28, 28)).square().sum().backward()
            model.zero_grad()

    steps()
    with counting.counted(group) as counted:
        steps()
    return counted


@on_every_rank
def test_ddp_sends_a_ring_s_share_of_its_gradients():
    group, model = joined(), torch_cnn.build(1)
    counted = sent_in(group, model, DistributedDataParallel(model, process_group=group))
    size, whole = dist.get_world_size(), sum(4 * math.prod(shape) for shape in SHAPES)
    assert counted.asked_for == STEPS * [("allreduce", whole)]
    sent = [None] * size
    dist.all_gather_object(sent, counted.messages.bytes_sent)
    assert sum(sent) == STEPS * 2 * (size - 1) * whole, "all ranks together; their parts differ by a number at most"
    assert max(sent) - min(sent) <= STEPS * 2 * 4


@on_every_rank
def test_fsdp_gathers_each_layer_twice_and_scatters_its_gradients_once():
    group, model = joined(), torch_cnn.build(1)
    mesh, size = DeviceMesh.from_group(group, "cpu"), dist.get_world_size()
    for layer in [*(layer for layer in model if list(layer.parameters())), model]:
        fully_shard(layer, mesh=mesh)
    counted = sent_in(group, model, model)
    # FSDP shards by rows and fills up the last shard.
    layers = [sum(4 * size * math.ceil(rows / size) * math.prod(rest) for rows, *rest in shapes) for shapes in LAYERS]
    kinds = ("allgather", "allgather", "reduce-scatter")
    assert sorted(counted.asked_for) == sorted(STEPS * [(kind, nbytes) for nbytes in layers for kind in kinds])
    assert counted.messages.bytes_sent == STEPS * 3 * (size - 1) * sum(layers) / size


@on_every_rank
def test_powersgd_waits_inside_its_callbacks_and_averages_as_over_gloo():
    gradients = []
    for group in (joined(), dist.group.WORLD):
        model = DistributedDataParallel(torch_cnn.build(1), process_group=group)
        state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, min_compression_rate=1)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(4):
            model(torch.full((4, 1, 28, 28), 1.0 + dist.get_rank())).square().sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert torch.allclose(*gradients, rtol=1e-3)


def test_emulated_links_carry_bf16_as_two_bytes_though_mpi_adds_up_four():
    array = torch_mpi.Buffer(torch.ones(5, dtype=torch.bfloat16), reduced=True).array
    assert (comm._nbytes(array), array.itemsize) == (10, 4)


ALONE = """\
import os, sys, time, torch, torch.distributed as dist
from workshop_lib.training import torch_mpi
from workshop_lib.training import rendezvous
from workshop_lib.machine import world
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
    command = [*which_mpi.mpiexec(), "-n", 2, sys.executable, tmp_path / "alone.py"]
    [(_, output)] = run_bounded([command], [rank_environment()], 60)
    alone = "Iallreduce had not ended after 1 s on rank 0"
    assert f"{alone}: the other ranks may have failed or be elsewhere. Restart all ranks." in output
    assert f"Iallreduce can't start, because {alone}. Restart all ranks." in output
    assert "ends" in output
