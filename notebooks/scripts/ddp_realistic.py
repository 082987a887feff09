"""MNIST with DDP and what real trainings need. Start it with: torchrun --standalone --nproc-per-node 2 ddp_realistic.py

It computes in bfloat16, adds up gradients of several micro-batches, clips them, resumes, compiles, and profiles.
"""

import argparse
import itertools
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
    parser.add_argument("--workers", type=int, default=2, help="processes per rank that read images; 0: none")
    parser.add_argument("--save-every", type=int, default=500, help="steps between two checkpoints within an epoch")
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


class Remaining(DistributedSampler):
    """Leaves out the images that a rank has trained on in this epoch before the training was started again."""

    skipped = 0  # images of this rank

    def __iter__(self):
        return itertools.islice(super().__iter__(), self.skipped, None)

    def __len__(self):
        return super().__len__() - self.skipped


def load(path, device):
    """Return the checkpoint, or None. Rank 0 alone decides if there is one, so all ranks go on from it or none does."""
    found = torch.tensor(int(path.exists()), device=device)
    dist.broadcast(found, 0)
    if not found:
        return None
    try:
        # Each rank maps the file and reads what it needs: nothing is sent, and the ranks of a node share the memory.
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        sentence = f"{path} can be read on rank 0, but not on rank {dist.get_rank()}: put it where all nodes can."
        raise SystemExit(sentence) from None
    if "epoch" not in checkpoint:
        raise SystemExit(f"{path} says no epoch to continue from: delete it, or give another file with --out.")
    return checkpoint


def save(state, path):
    """Write a checkpoint. A crash leaves the old file or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def in_steps(loader, count):
    """Yield lists of `count` micro-batches, one list per step. The last list of an epoch may be shorter."""
    micro_batches = []
    for micro_batch in loader:
        micro_batches.append(micro_batch)
        if len(micro_batches) == count:
            yield micro_batches
            micro_batches = []
    if micro_batches:
        yield micro_batches


def train_step(ddp, micro_batches, optimizer, device, args):
    """Take one step. Return the sum of the losses of this rank's images."""
    loss_sum = torch.zeros((), device=device)
    samples = torch.tensor(sum(len(labels) for _, labels in micro_batches), device=device)
    dist.all_reduce(samples)
    for number, (images, labels) in enumerate(micro_batches, 1):
        # Only the last micro-batch sends gradients. Its forward pass decides that, so it belongs in here, too.
        with nullcontext() if number == len(micro_batches) else ddp.no_sync():
            with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
                logits = ddp(images.to(device, non_blocking=True))
            loss = cross_entropy(logits.float(), labels.to(device, non_blocking=True), reduction="sum")
            # DDP divides the sum of all ranks' gradients by the number of ranks. What counts is the number of samples:
            # the last micro-batch of an epoch may be smaller than the others.
            (loss * dist.get_world_size() / samples).backward()
        loss_sum += loss.detach()
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), args.clip)
    optimizer.step()
    optimizer.zero_grad()
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
    sampler = Remaining(train, seed=1)  # shuffles, and gives each rank images of its own
    loader = DataLoader(
        train,
        args.batch,
        sampler=sampler,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,  # or each epoch starts them again
        pin_memory=device.type != "cpu",
        timeout=120 if args.workers else 0,  # a worker that hangs is an error, after this many seconds
    )
    # Each test image is tested once. A DistributedSampler would repeat some, so that all ranks have as many.
    test_loader = DataLoader(Subset(test, range(rank, len(test), size)), batch_size=500)
    steps = math.ceil(len(loader) / args.accumulate)
    total = args.epochs * steps

    torch.manual_seed(1)
    model = cnn().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    checkpoint = load(args.out, device) or {"epoch": 0, "images": 0}
    done = checkpoint["epoch"]
    first = checkpoint["images"] // (size * args.batch * args.accumulate)  # the first step of the next epoch
    if first >= steps:  # the last start had smaller steps, or more images
        done, first = done + 1, 0
    if rank == 0 and done >= args.epochs:
        print(f"{args.out} has trained {done} epochs already: give more with --epochs to go on.")
    if "model" in checkpoint:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1 - step / total, last_epoch=done * steps + first - 1
    )
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)  # gradients live in the buckets: no copies
    if args.compile:
        ddp.compile()  # in place, so the weights keep their names
    profiler = None
    if args.profile:
        profiler = torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=2, warmup=1, active=3, repeat=1),
            on_trace_ready=torch.profiler.tensorboard_trace_handler(args.profile, f"rank{rank}"),
        )
        profiler.start()

    def save_progress(epochs, images):
        """Save what has been trained: whole epochs, and images of all ranks in the one after them."""
        progress = {"epoch": epochs, "images": images}
        save({**progress, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)

    for epoch in range(done + 1, args.epochs + 1):
        ddp.train()
        sampler.set_epoch(epoch)  # without it, each epoch has the order of the first
        sampler.skipped = first * args.batch * args.accumulate
        loss_sum = torch.zeros((), device=device)
        start = time.perf_counter()
        for step, micro_batches in enumerate(in_steps(loader, args.accumulate), first + 1):
            torch.manual_seed((epoch * steps + step) * size + rank)  # noise of this step and rank, such as dropout's
            loss_sum += train_step(ddp, micro_batches, optimizer, device, args)
            schedule.step()
            if profiler:
                profiler.step()
            if rank == 0 and step % args.save_every == 0 and step < steps:
                save_progress(epoch - 1, step * size * args.batch * args.accumulate)
        dist.all_reduce(loss_sum)  # what one rank has seen says little
        images = size * len(sampler)
        loss = loss_sum.item() / images  # waits until a GPU has finished its work
        speed = images / (time.perf_counter() - start)
        first = 0
        for buffer in model.buffers():  # such as the statistics of batch normalization: rank 0's on all ranks
            dist.broadcast(buffer, 0)
        right = count_right(model, test_loader, device)
        dist.all_reduce(right)
        if rank == 0:
            accuracy = right.item() / len(test)
            print(f"epoch {epoch}: {speed:,.0f} images/s, loss {loss:.3f}, test accuracy {accuracy:.2%}")
            save_progress(epoch, 0)
    if profiler:
        profiler.stop()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
