"""MNIST with DDP and what real trainings need. Start it with: torchrun --standalone --nproc-per-node 2 ddp_realistic.py

It computes in bfloat16, adds up gradients of several micro-batches, clips them, resumes, compiles, and profiles.
"""

import argparse
import math
import os
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from mnist_data import MNIST, MNIST_FOLDER, cnn, mnist_folder
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--images", type=int, default=60_000, help="training images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("realistic.pt"), help="checkpoint to write and resume from")
    parser.add_argument("--batch", type=int, default=32, help="images per rank and micro-batch")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per step")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the averaged gradient")
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--profile", help="folder for a trace of each rank")
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


def load(path):
    """Return the checkpoint on every rank, or None. Rank 0 alone looks for it, so that all ranks resume or none."""
    found = [None]
    if dist.get_rank() == 0 and path.exists():
        found = [torch.load(path, map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(found)
    if found[0] and "epoch" not in found[0]:
        raise SystemExit(f"{path} says no epoch to continue from: delete it, or give another file with --out.")
    return found[0]


def save(state, path):
    """Write a checkpoint. A crash leaves the old file or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def train_epoch(ddp, loader, optimizer, schedule, profiler, device, args):
    """Train on this rank's images once. Return the sum of their losses."""
    ddp.train()
    loss_sum = torch.zeros((), device=device)
    samples = torch.zeros((), device=device)
    for number, (images, labels) in enumerate(loader, 1):
        last = number % args.accumulate == 0 or number == len(loader)
        # Only a step's last micro-batch sends gradients. Its forward pass decides that, so it belongs in here, too.
        with nullcontext() if last else ddp.no_sync():
            with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
                logits = ddp(images.to(device, non_blocking=True))
            loss = cross_entropy(logits.float(), labels.to(device, non_blocking=True), reduction="sum")
            loss.backward()
        loss_sum += loss.detach()
        samples += len(labels)
        if last:
            # The gradient is a sum over samples, which DDP has divided by the number of ranks. The mean over all
            # samples is right even if a micro-batch or a rank has fewer of them, as the last one of an epoch may.
            dist.all_reduce(samples)
            for parameter in ddp.parameters():
                parameter.grad *= dist.get_world_size() / samples
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), args.clip)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            samples.zero_()
        if profiler:
            profiler.step()
    return loss_sum


@torch.no_grad()
def count_right(model, loader, device):
    """Return how many images the model recognizes."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in loader:
        guesses = model(images.to(device)).argmax(1)
        right += (guesses == labels.to(device)).sum()
    return right


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
    loader = DataLoader(train, args.batch, sampler=sampler, pin_memory=device.type != "cpu")
    # Each test image is tested once. A DistributedSampler would repeat some, so that all ranks have as many.
    test_loader = DataLoader(Subset(test, range(rank, len(test), size)), batch_size=500)
    steps = math.ceil(len(loader) / args.accumulate)
    total = args.epochs * steps

    torch.manual_seed(1)
    model = cnn().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    checkpoint = load(args.out) or {"epoch": 0}
    done = checkpoint["epoch"]
    if rank == 0 and done >= args.epochs:
        print(f"{args.out} has trained {done} epochs already: give more with --epochs to go on.")
    if done:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / total, last_epoch=done * steps - 1)
    ddp = DistributedDataParallel(model)
    if args.compile:
        ddp.compile()  # in place, so the weights keep their names
    profiler = None
    if args.profile:
        profiler = torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=2, warmup=1, active=3, repeat=1),
            on_trace_ready=torch.profiler.tensorboard_trace_handler(args.profile, f"rank{rank}"),
        )
        profiler.start()

    for epoch in range(done + 1, args.epochs + 1):
        sampler.set_epoch(epoch)  # without it, each epoch has the order of the first
        start = time.perf_counter()
        loss_sum = train_epoch(ddp, loader, optimizer, schedule, profiler, device, args)
        right = count_right(model, test_loader, device)
        # What one rank has seen says little: these are the sums over all ranks.
        dist.all_reduce(loss_sum)
        dist.all_reduce(right)
        seconds = time.perf_counter() - start
        if rank == 0:
            loss = loss_sum.item() / len(train)
            accuracy = right.item() / len(test)
            print(f"epoch {epoch}: {len(train) / seconds:,.0f} images/s, loss {loss:.3f}, test accuracy {accuracy:.2%}")
            save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
    if profiler:
        profiler.stop()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
