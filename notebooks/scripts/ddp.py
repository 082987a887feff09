"""MNIST with PyTorch's DDP. Start it with: torchrun --standalone --nproc-per-node 2 ddp.py"""

import argparse
import os
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


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--images", type=int, default=60_000, help="training images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("cnn.pt"), help="file for the checkpoint")
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


@torch.no_grad()
def count_right(model, loader, device):
    """Return how many images the model recognizes."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in loader:
        guesses = model(images.to(device)).argmax(1)
        right += (guesses == labels.to(device)).sum()
    return right


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

    train = MNIST(args.data, "train", args.images)
    test = MNIST(args.data, "test")
    sampler = DistributedSampler(train, seed=1)  # shuffles, and gives each rank images of its own
    loader = DataLoader(train, BATCH, sampler=sampler, drop_last=True)
    # Each test image is tested once. A DistributedSampler would repeat some, so that all ranks have as many.
    test_loader = DataLoader(Subset(test, range(rank, len(test), size)), batch_size=500)
    steps = len(loader)
    if steps < 2:
        raise SystemExit(f"--images {args.images} is too few for two steps of {BATCH} per process: give more.")

    torch.manual_seed(1)
    model = cnn().to(device)
    ddp = DistributedDataParallel(model)
    torch.manual_seed(1000 + rank)  # from here on, each rank draws noise of its own, such as dropout's
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    # The learning rate rises for half an epoch, then falls to zero.
    warmup = steps // 2
    total = args.epochs * steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (total - step) / (total - warmup))
    )

    for epoch in range(1, args.epochs + 1):
        model.train()
        sampler.set_epoch(epoch)  # without it, each epoch has the order of the first
        start = time.perf_counter()
        for images, labels in loader:
            loss = cross_entropy(ddp(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        loss.item()  # waits until a GPU has finished its work
        speed = steps * size * BATCH / (time.perf_counter() - start)
        for buffer in model.buffers():  # such as the statistics of batch normalization: rank 0's on all ranks
            dist.broadcast(buffer, 0)
        right = count_right(model, test_loader, device)
        dist.all_reduce(right)
        if rank == 0:
            print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right.item() / len(test):.2%}")
            save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
