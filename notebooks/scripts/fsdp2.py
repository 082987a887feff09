"""MNIST with PyTorch's FSDP2. Start it with: torchrun --standalone --nproc-per-node 2 fsdp2.py

No rank ever holds the whole network, not when it's built and not when it's saved. Started again, it goes on from its
last checkpoint, on any number of ranks.
"""

import argparse
import math
import os
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from mnist_data import MNIST, MNIST_FOLDER, cnn, mnist_folder
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, DistributedSampler

BATCH = 64  # images per rank and micro-batch


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--images", type=int, default=60_000, help="training images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("fsdp2"), help="folder for checkpoints, to go on from")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--clip", type=float, help="largest norm of the gradient; by default, it isn't clipped")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16; the weights stay in float32")
    parser.add_argument("--recompute", action="store_true", help="keep no activations inside of layers")
    return parser.parse_args()


def join():
    """Join the other ranks, and return this rank's own device: a GPU of its node, or the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":  # Apple's GPUs have no collectives
        dist.init_process_group("gloo")
        return torch.device("cpu")
    # torchrun sets LOCAL_RANK. mpiexec and srun don't, but they usually number the ranks of a node consecutively.
    local_rank = dist.get_node_local_rank(fallback_rank=int(os.environ["RANK"]))
    # Some launchers show each rank one GPU only, which is number 0 on all ranks.
    device = torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    # The device comes first: NCCL takes the current one, and would start all ranks on GPU 0.
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group(device_id=device)
    return device


def build(device, args):
    """Return the network, sharded over all ranks. Only one layer at a time is whole."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy()
    if args.bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with torch.device("meta"):  # shapes without memory
        model = cnn()
    torch.manual_seed(1)  # all ranks draw the same layers, and each keeps its shards
    for at, layer in enumerate(model):  # in a transformer: each block
        if not list(layer.parameters()):
            continue
        layer.to_empty(device=device)
        layer.reset_parameters()
        if args.recompute and not list(layer.buffers()):  # batch normalization would count each batch twice
            model[at] = layer = checkpoint_wrapper(layer)
        fully_shard(layer, mesh=mesh, mp_policy=policy)  # gathered as a unit
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


@torch.no_grad()
def count_right(model, loader, device):
    """Return how many images the model recognizes."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in loader:
        guesses = model(images.to(device)).argmax(1)
        right += (guesses == labels.to(device)).sum()
    return right


def load(folder, model, optimizer, device):
    """Load the newest checkpoint, and return its epoch; 0 if there's none. Rank 0 alone looks for it."""
    epochs = [int(each.name.removeprefix("epoch")) for each in folder.glob("epoch*[0-9]")]
    newest = torch.tensor(max(epochs, default=0), device=device)
    dist.broadcast(newest, 0)
    epoch = int(newest)
    if epoch:
        weights, momentum = get_state_dict(model, optimizer)
        # Each rank reads its own shards, which other ranks may have written, into these tensors.
        dcp.load({"model": weights, "optimizer": momentum}, checkpoint_id=folder / f"epoch{epoch}")
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=momentum)
    return epoch


def save(folder, model, optimizer, epoch):
    """Write a checkpoint: each rank its own shards. It gets its name when all of it is there, and replaces the last."""
    weights, momentum = get_state_dict(model, optimizer)
    unfinished = folder / f"epoch{epoch}.tmp"
    dcp.save({"model": weights, "optimizer": momentum}, checkpoint_id=unfinished)  # returns when all ranks have written
    if dist.get_rank() == 0:
        unfinished.rename(folder / f"epoch{epoch}")
        shutil.rmtree(folder / f"epoch{epoch - 1}", ignore_errors=True)


@record  # torchrun's report then has the traceback of the rank that failed first
def main():
    args = parse_arguments()
    device = join()
    rank = dist.get_rank()
    size = dist.get_world_size()
    torch.set_num_threads(1)  # one core per process, however many processes there are

    train = MNIST(args.data, "train", args.images)
    test = MNIST(args.data, "test")
    sampler = DistributedSampler(train, seed=1)  # shuffles, and gives each rank images of its own
    loader = DataLoader(train, BATCH, sampler=sampler, drop_last=True)
    # Each test image is tested once. All ranks gather weights in each forward pass, so all need as many batches.
    own_images = range(rank, len(test), size)
    batches = math.ceil(len(test) / (500 * size))
    test_loader = DataLoader(test, batch_sampler=[own_images[first::batches] for first in range(batches)])
    steps = len(loader) // args.accumulate
    if steps < 2:
        per_step = BATCH * args.accumulate
        raise SystemExit(f"--images {args.images} is too few for two steps of {per_step} per process: give more.")

    model = build(device, args)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    optimizer.param_groups[0]["initial_lr"] = 0.1  # a schedule that goes on looks for it, so it has to be loaded
    done = load(args.out, model, optimizer, device)
    if rank == 0 and done >= args.epochs:
        print(f"{args.out} has trained {done} epochs already: give more with --epochs to go on.")
    # The learning rate rises for half an epoch, then falls to zero.
    warmup = steps // 2
    total = args.epochs * steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (total - step) / (total - warmup)), last_epoch=done * steps - 1
    )

    for epoch in range(done + 1, args.epochs + 1):
        model.train()
        sampler.set_epoch(epoch)  # without it, each epoch has the order of the first
        torch.manual_seed(1000 * epoch + rank)  # noise of this epoch and rank, such as dropout's
        start = time.perf_counter()
        for number, (images, labels) in enumerate(loader, 1):
            last = number % args.accumulate == 0
            model.set_requires_gradient_sync(last)  # only a step's last micro-batch reduces gradients
            loss = cross_entropy(model(images.to(device)).float(), labels.to(device))
            (loss / args.accumulate).backward()
            if last:
                if args.clip is not None:
                    clip_grad_norm_(model.parameters(), args.clip)  # the norm of all shards, on all ranks
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
        loss.item()  # waits until a GPU has finished its work
        speed = number * size * BATCH / (time.perf_counter() - start)
        for buffer in model.buffers():  # such as the statistics of batch normalization: rank 0's on all ranks
            dist.broadcast(buffer, 0)
        right = count_right(model, test_loader, device)
        dist.all_reduce(right)
        if rank == 0:
            print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right.item() / len(test):.2%}")
        save(args.out, model, optimizer, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
