"""MNIST with DDP, in a job that may be ended and started again: job.sh runs torchrun … ddp_resume.py on its nodes."""

import argparse
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from mnist_data import MNIST, MNIST_FOLDER, cnn, mnist_folder
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

BATCH = 64  # images per rank and step
ASK_EVERY = 10  # steps after which the ranks ask each other whether one of them has to end


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--images", type=int, default=60_000, help="training images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("cnn.pt"), help="checkpoint to write and to go on from")
    parser.add_argument("--save-every", type=int, default=200, help="steps between two checkpoints within an epoch")
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


@torch.no_grad()
def count_right(model, loader, device):
    """Return how many images the model recognizes."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in loader:
        guesses = model(images.to(device)).argmax(1)
        right += (guesses == labels.to(device)).sum()
    return right


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


def any_rank(condition, device):
    """Whether this holds on some rank. They may get a signal at different steps, but have to end after the same one."""
    holds = torch.tensor(int(condition), device=device)
    dist.all_reduce(holds, dist.ReduceOp.MAX)
    return bool(holds)


def save(state, path):
    """Write a checkpoint. A crash leaves the old file or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


@record  # torchrun's report then has the traceback of the rank that failed first
def main():
    args = parse_arguments()
    device = join()
    rank = dist.get_rank()
    size = dist.get_world_size()
    torch.set_num_threads(1)  # one core per process, however many processes there are
    # Slurm sends SIGTERM to a job that has to end, and torchrun passes it on. There are about 30 seconds left then.
    told_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: told_to_end.set())

    train = MNIST(args.data, "train", args.images)
    test = MNIST(args.data, "test")
    sampler = Remaining(train, seed=1)  # shuffles, and gives each rank images of its own
    loader = DataLoader(train, BATCH, sampler=sampler, drop_last=True)
    # Each test image is tested once. A DistributedSampler would repeat some, so that all ranks have as many.
    test_loader = DataLoader(Subset(test, range(rank, len(test), size)), batch_size=500)
    steps = len(loader)
    if steps < 2:
        raise SystemExit(f"--images {args.images} is too few for two steps of {BATCH} per process: give more.")

    torch.manual_seed(1)
    model = cnn().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    done = 0  # epochs
    first = 0  # the first step of the next epoch
    if checkpoint := load(args.out, device):
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        done = checkpoint["epoch"]
        first = checkpoint["images"] // (size * BATCH)  # the last start may have had other ranks and images
        if first >= steps:
            done, first = done + 1, 0
    if rank == 0 and done >= args.epochs:
        print(f"{args.out} has trained {done} epochs already: give more with --epochs to go on.")
    ddp = DistributedDataParallel(model)  # sends rank 0's weights to all, so it comes after loading
    # The learning rate rises for half an epoch, then falls to zero.
    warmup = steps // 2
    total = args.epochs * steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, (total - step) / (total - warmup)),
        last_epoch=done * steps + first - 1,  # in steps of this start
    )

    def save_progress(epochs, images):
        """Save what has been trained: whole epochs, and images of all ranks in the one after them."""
        progress = {"epoch": epochs, "images": images}
        save({**progress, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)

    for epoch in range(done + 1, args.epochs + 1):
        model.train()
        sampler.set_epoch(epoch)  # without it, each epoch has the order of the first
        sampler.skipped = first * BATCH
        start = time.perf_counter()
        for step, (images, labels) in enumerate(loader, first + 1):
            torch.manual_seed((epoch * steps + step) * size + rank)  # noise of this step and rank, such as dropout's
            loss = cross_entropy(ddp(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            ending = step % ASK_EVERY == 0 and any_rank(told_to_end.is_set(), device)
            due = step % args.save_every == 0 and step < steps
            if rank == 0 and (due or ending):
                save_progress(epoch - 1, step * size * BATCH)
                print(f"epoch {epoch}, step {step}: saved", flush=True)
            if ending:
                dist.destroy_process_group()
                raise SystemExit(128 + signal.SIGTERM)  # the exit code of a process that this signal has ended
        loss.item()  # waits until a GPU has finished its work
        speed = (steps - first) * size * BATCH / (time.perf_counter() - start)
        first = 0
        for buffer in model.buffers():  # such as the statistics of batch normalization: rank 0's on all ranks
            dist.broadcast(buffer, 0)
        right = count_right(model, test_loader, device)
        dist.all_reduce(right)
        if rank == 0:
            print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right.item() / len(test):.2%}")
            save_progress(epoch, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
