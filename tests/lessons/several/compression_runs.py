"""Run on every rank: DDP with each way of compressing gradients."""

import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.lessons.less_communication import compression
from workshop_lib.training import rendezvous, world

COMM = MPI.COMM_WORLD
STEPS = 15


def network():
    """Wide enough that PowerSGD compresses two of its matrices, and not the last."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 20), nn.Tanh(), nn.Linear(20, 3))


def flat(tensors):
    return torch.cat([torch.as_tensor(tensor).detach().flatten() for tensor in tensors])


def batch(step, rank=COMM.rank):
    random = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(8, 30, generator=random), torch.randint(3, (8,), generator=random)


def exact(step):
    """The mean gradient of all ranks' batches, on this process alone."""
    model = network()
    for rank in range(COMM.size):
        inputs, labels = batch(step, rank)
        (cross_entropy(model(inputs), labels) / COMM.size).backward()
    return flat(p.grad for p in model.parameters())


def wrapped(**how):
    return DistributedDataParallel(network(), **how)


def gradient(model, step):
    model.zero_grad()
    inputs, labels = batch(step)
    cross_entropy(model(inputs), labels).backward()
    return flat(p.grad for p in model.parameters())


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


def everything_sent():
    model = wrapped()
    model.register_comm_hook(None, compression.TopK(1.0).hook)
    return max(relative(gradient(model, step), exact(step)) for step in range(3))


def conserved(compress):
    """What came of 15 gradients, and what is still kept, against their sum, over several buckets."""
    model, top = wrapped(bucket_cap_mb=0.004), compression.TopK(0.05, compress)
    model.register_comm_hook(None, top.hook)
    arrived = sum(gradient(model, step) for step in range(STEPS))
    kept = [top.residuals.get(p, torch.zeros(p.numel())) for p in model.parameters()]
    summed = torch.tensor(COMM.allreduce(flat(kept).numpy())) / COMM.size
    total = sum(exact(step) for step in range(STEPS))
    return {"difference": relative(arrived + summed, total), "kept": float(summed.norm() / total.norm())}


def one_step_on_this_rank():
    """sent + residual = gradient + old residual, to the last bit; sent is what is not kept."""
    top, model, found = compression.TopK(0.1), wrapped(), []
    originals = torch.distributed.all_gather

    def spy(gathered, message, **how):
        found.append(message.clone())
        return originals(gathered, message, **how)

    def noted(state, bucket: torch.distributed.GradBucket):
        old = flat([top.residuals.get(p, torch.zeros(p.numel())) for p in bucket.parameters()])
        before = bucket.buffer() + old
        future = top.hook(state, bucket)
        values, places = found[-1].chunk(2)
        sent = torch.zeros_like(before).index_copy(0, places.view(torch.int32).long(), values)
        kept = flat([top.residuals[p] for p in bucket.parameters()])
        equal.append(torch.equal(sent + kept, before))
        largest.append(float(sent.abs().max()) == float(before.abs().max()) and len(values) == k(before))
        return future

    def k(vector):
        return round(0.1 * len(vector))

    equal, largest = [], []
    torch.distributed.all_gather = spy
    try:
        model.register_comm_hook(None, noted)
        for step in range(4):
            gradient(model, step)
    finally:
        torch.distributed.all_gather = originals
    return [equal, largest]


def trained():
    """{way: bytes and messages of the last step, whether the ranks' weights are equal, how far they went}."""
    found = {}
    for name, register in compression.ways().items():
        model = wrapped()
        register(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            with compression.counted() as sent:
                gradient(model, step)
            optimizer.step()
        weights = flat(model.parameters())
        everyone = COMM.allgather(weights.numpy().tobytes())
        same = all(other == everyone[0] for other in everyone)
        found[name] = sent | {"same": same, "moved": relative(weights, flat(network().parameters()))}
    return found


def outcomes():
    """{case: [outcome by rank]} on the first rank."""
    torch.set_num_threads(1)
    rendezvous.join_process_group(world.detect(), torch.device("cpu"))
    found = {
        "everything sent": everything_sent(),
        "feedback": conserved(compression.largest),
        "no feedback": conserved(compression.forgetful),
        "one step": one_step_on_this_rank(),
        "trained": trained(),
        "shapes": [list(p.shape) for p in network().parameters()],
    }
    return {name: COMM.gather(value) for name, value in found.items()}
