"""Run on every rank: what torch.distributed's operations give over MPI and over gloo, and what they should.

torch_mpi_runs.py FOLDER    writes FOLDER/operations.<rank>.json, of each operation {"mpi", "gloo", "expected"},
                            and FOLDER/bytes.<rank>.json, what DDP and FSDP ask for and send in a step
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.lessons.mpi_basics import counting
from workshop_lib.models import torch_cnn
from workshop_lib.training import rendezvous, world

ROOT = 1
HERE = world.detect()
RANK, SIZE = HERE.rank, HERE.world_size
EVERY = [np.arange(6.0 * SIZE, dtype=np.float32).reshape(2 * SIZE, 3) + 10 * rank for rank in range(SIZE)]  # by rank
SUM = np.sum(EVERY, axis=0)


def own(dtype=torch.float32) -> torch.Tensor:
    return torch.tensor(EVERY[RANK], dtype=dtype)


def part(whole, rank: int = RANK):
    """The two rows that belong to a rank."""
    return whole[2 * rank : 2 * rank + 2]


def empty(rows: int) -> torch.Tensor:
    return torch.full((rows, 3), -1.0)


def parts() -> list[torch.Tensor]:
    return list(own().split(2))


def allreduce(group, kind=dist.ReduceOp.SUM, dtype=torch.float32):
    tensor = own(dtype)
    dist.all_reduce(tensor, kind, group)
    return tensor


def allreduce_of_columns(group):
    tensor = own()
    dist.all_reduce(tensor[:, 1:], group=group)
    return tensor


def allreduce_of_one_number(group):
    tensor = own()[1, 1]
    dist.all_reduce(tensor, group=group)
    return tensor


def two_under_way(group):
    tensors = own(), 2 * own()
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    assert all(work.is_completed() for work in works)
    return torch.cat(tensors)


def reduce(group):
    tensor = own()
    dist.reduce(tensor, ROOT, group=group)
    return tensor if RANK == ROOT else own()


def broadcast(group, dtype=torch.float32):
    tensor = own(dtype)
    dist.broadcast(tensor, ROOT, group)
    return tensor


def allgather(group):
    gathered = [empty(2 * SIZE) for _ in range(SIZE)]
    dist.all_gather(gathered, own(), group)
    return torch.cat(gathered)


def allgather_tensor(group):
    gathered = empty(2 * SIZE * SIZE)
    dist.all_gather_into_tensor(gathered, own(), group)
    return gathered


def allgather_objects(group):
    gathered = [None] * SIZE
    dist.all_gather_object(gathered, {"rank": RANK, "text": "x" * 50 * RANK}, group)
    return torch.tensor([each["rank"] + len(each["text"]) for each in gathered])


def gather(group):
    gathered = [empty(2 * SIZE) for _ in range(SIZE)] if RANK == ROOT else None
    dist.gather(own(), gathered, ROOT, group)
    return torch.cat(gathered) if gathered else empty(0)


def scatter(group):
    tensor = empty(2)
    dist.scatter(tensor, parts() if RANK == ROOT else None, ROOT, group)
    return tensor


def reduce_scatter(group):
    tensor = empty(2)
    dist.reduce_scatter(tensor, parts(), group=group)
    return tensor


def reduce_scatter_tensor(group, kind=dist.ReduceOp.SUM):
    tensor = empty(2)
    dist.reduce_scatter_tensor(tensor, own(), kind, group)
    return tensor


def all_to_all(group):
    arrived = [empty(2) for _ in range(SIZE)]
    dist.all_to_all(arrived, parts(), group)
    return torch.cat(arrived)


def all_to_all_tensor(group):
    arrived = empty(2 * SIZE)
    dist.all_to_all_single(arrived, own(), group=group)
    return arrived


def all_to_all_uneven(group):
    """Every rank sends rank r its first r rows."""
    tensor, arrived = torch.cat([own()[:rank] for rank in range(SIZE)]), empty(RANK * SIZE)
    dist.all_to_all_single(arrived, tensor, [RANK] * SIZE, list(range(SIZE)), group=group)
    return arrived


def ring_of_sends(group):
    tensor = empty(2 * SIZE)
    going = dist.P2POp(dist.isend, own(), (RANK + 1) % SIZE, group, tag=3)
    coming = dist.P2POp(dist.irecv, tensor, (RANK - 1) % SIZE, group, tag=3)
    for work in dist.batch_isend_irecv([going, coming]):
        work.wait()
    return tensor


def receive_from_any(group):
    """Rank 0 takes what comes first."""
    total = torch.zeros_like(own())
    for _ in range(SIZE - 1):
        if RANK == 0:
            tensor = empty(2 * SIZE)
            source = dist.recv(tensor, None, group)
            assert torch.equal(tensor, torch.tensor(EVERY[source]))
            total += tensor
    if RANK > 0:
        dist.send(own(), 0, group)
    dist.barrier(group)
    return total


def in_two_halves(group):
    """Groups of a half of the ranks each, which do not wait for each other."""
    of = dist.get_backend(group)
    halves = [dist.new_group(list(half), backend=of) for half in np.split(np.arange(SIZE), 2)]
    tensor = own()
    for _ in range(1 + 2 * RANK // SIZE):
        dist.all_reduce(tensor, dist.ReduceOp.MAX, halves[2 * RANK // SIZE])
    return tensor


BF16 = torch.tensor(np.array(EVERY)).bfloat16()
LOWER = np.max(EVERY[: SIZE // 2], axis=0) if 2 * RANK < SIZE else EVERY[-1]
TO_HERE = np.concatenate([part(each) for each in EVERY])
# Of each operation, how it is called on a group, and what this rank must then have.
OPERATIONS = {
    "allreduce": (allreduce, SUM),
    "allreduce, mean": (lambda group: allreduce(group, dist.ReduceOp.AVG), SUM / SIZE),
    "allreduce, product": (lambda group: allreduce(group, dist.ReduceOp.PRODUCT), np.prod(EVERY, axis=0)),
    "allreduce, least": (lambda group: allreduce(group, dist.ReduceOp.MIN), EVERY[0]),
    "allreduce, most": (lambda group: allreduce(group, dist.ReduceOp.MAX), EVERY[-1]),
    "allreduce, float64": (lambda group: allreduce(group, dtype=torch.float64), SUM),
    "allreduce, int64": (lambda group: allreduce(group, dtype=torch.int64), SUM),
    "allreduce, bfloat16": (lambda group: allreduce(group, dtype=torch.bfloat16), BF16.float().sum(0).bfloat16()),
    "allreduce, bool": (lambda group: allreduce(group, dist.ReduceOp.MAX, torch.bool), np.max(EVERY, axis=0) > 0),
    "allreduce, columns": (allreduce_of_columns, np.c_[EVERY[RANK][:, :1], SUM[:, 1:]]),
    "allreduce, one number": (allreduce_of_one_number, SUM[1, 1]),
    "two allreduces under way": (two_under_way, np.concatenate([SUM, 2 * SUM])),
    "reduce": (reduce, SUM if RANK == ROOT else EVERY[RANK]),
    "broadcast": (broadcast, EVERY[ROOT]),
    "broadcast, bfloat16": (lambda group: broadcast(group, torch.bfloat16), BF16[ROOT]),
    "allgather": (allgather, np.concatenate(EVERY)),
    "allgather, one tensor": (allgather_tensor, np.concatenate(EVERY)),
    "allgather, objects": (allgather_objects, 51 * np.arange(SIZE)),
    "gather": (gather, np.concatenate(EVERY) if RANK == ROOT else np.zeros((0, 3))),
    "scatter": (scatter, part(EVERY[ROOT])),
    "reduce-scatter": (reduce_scatter, part(SUM)),
    "reduce-scatter, one tensor": (reduce_scatter_tensor, part(SUM)),
    "reduce-scatter, mean": (lambda group: reduce_scatter_tensor(group, dist.ReduceOp.AVG), part(SUM) / SIZE),
    "all-to-all": (all_to_all, TO_HERE),
    "all-to-all, one tensor": (all_to_all_tensor, TO_HERE),
    "all-to-all, uneven": (all_to_all_uneven, np.concatenate([each[:RANK] for each in EVERY])),
    "sends in a ring": (ring_of_sends, EVERY[RANK - 1]),
    "receive from any": (receive_from_any, np.sum(EVERY[1:], axis=0) if RANK == 0 else 0 * SUM),
    "groups of a half": (in_two_halves, LOWER),
}
# gloo has no mean, and takes columns for rows.
NOT_IN_GLOO = ("allreduce, mean", "reduce-scatter, mean", "allreduce, columns")
COUNTED = ("allreduce", "allgather", "reduce-scatter", "broadcast", "all-to-all, uneven", "sends in a ring")


def steps(model: nn.Module, forward) -> None:
    """Two of training: the first also makes what both need."""
    for _ in range(2):
        forward(torch.ones(4, 1, 28, 28)).square().sum().backward()
        model.zero_grad()


def sent_in_a_step(group, model: nn.Module, forward) -> dict:
    steps(model, forward)
    with counting.counted(group) as counted:
        steps(model, forward)
    return {"asked_for": counted.asked_for, "bytes": counted.messages.bytes_sent}


def ddp(group, model: nn.Module) -> dict:
    return sent_in_a_step(group, model, DistributedDataParallel(model, process_group=group))


def fsdp(group, model: nn.Module) -> dict:
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in [*(layer for layer in model if list(layer.parameters())), model]:
        fully_shard(layer, mesh=mesh)
    return sent_in_a_step(group, model, model)


def main(folder: Path) -> None:
    device = torch.device("cpu")
    rendezvous.join_process_group(HERE, device)
    groups = {"mpi": rendezvous.join_over_mpi(HERE, device), "gloo": dist.group.WORLD}
    assert rendezvous.join_over_mpi(HERE, device) is groups["mpi"], "made once"
    outcomes = {}
    for name, (call, expected) in OPERATIONS.items():
        given = {kind: call(groups[kind]) for kind in groups if kind == "mpi" or name not in NOT_IN_GLOO}
        if name in COUNTED:
            with counting.counted(groups["mpi"]):
                given["counted"] = call(groups["mpi"])
        given = {kind: tensor.double().tolist() for kind, tensor in given.items()}
        outcomes[name] = given | {"expected": torch.as_tensor(expected).double().tolist()}
    (folder / f"operations.{RANK}.json").write_text(json.dumps(outcomes))
    sent = {step.__name__: step(groups["mpi"], torch_cnn.build(1)) for step in (ddp, fsdp)}
    (folder / f"bytes.{RANK}.json").write_text(json.dumps(sent))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
