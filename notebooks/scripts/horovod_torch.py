"""MNIST with Horovod. Start it with: mpiexec -n 2 python horovod_torch.py"""

import argparse
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from mnist_data import MNIST, MNIST_FOLDER, cnn, mnist_folder
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset

BATCH = 64  # images per rank and step


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--images", type=int, default=60_000, help="training images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("cnn.pt"), help="file for the checkpoint")
    return parser.parse_args()


def own_device():
    """Return this rank's device: a GPU of its node, or the CPU."""
    if not torch.cuda.is_available():  # Horovod knows no other GPUs
        return torch.device("cpu")
    # Some launchers show each rank one GPU only, which is number 0 on all ranks.
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
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


def main():
    args = parse_arguments()
    hvd.init()
    rank = hvd.rank()
    size = hvd.size()
    device = own_device()
    torch.set_num_threads(1)  # one core per process, however many processes there are

    train = MNIST(args.data, "train", args.images)
    test = MNIST(args.data, "test")
    sampler = DistributedSampler(train, size, rank, seed=1)  # shuffles, and gives each rank images of its own
    loader = DataLoader(train, BATCH, sampler=sampler, drop_last=True)
    # Each test image is tested once. A DistributedSampler would repeat some, so that all ranks have as many.
    test_loader = DataLoader(Subset(test, range(rank, len(test), size)), batch_size=500)
    steps = len(loader)
    if steps < 2:
        raise SystemExit(f"--images {args.images} is too few for two steps of {BATCH} per process: give more.")

    torch.manual_seed(1)
    model = cnn().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    torch.manual_seed(1000 + rank)  # from here on, each rank draws noise of its own, such as dropout's
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
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        loss.item()  # waits until a GPU has finished its work
        speed = steps * size * BATCH / (time.perf_counter() - start)
        # Such as the statistics of batch normalization: rank 0's on all ranks.
        hvd.broadcast_parameters(dict(model.named_buffers()), root_rank=0)
        right = count_right(model, test_loader, device)
        right = hvd.allreduce(right, op=hvd.Sum)
        if rank == 0:
            print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right.item() / len(test):.2%}")
            save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)


if __name__ == "__main__":
    main()
