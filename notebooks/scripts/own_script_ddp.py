"""own_script.py for many processes. Start it with: torchrun --standalone --nproc-per-node 2 own_script_ddp.py"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from mnist_data import MNIST, MNIST_FOLDER, mnist_folder
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from tqdm import tqdm

BATCH = 64  # images per step, on all ranks together
LR = 0.1


class Shifted(MNIST):
    """MNIST, with each image moved by up to two pixels."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        shift = torch.randint(-2, 3, (2,)).tolist()
        return image.roll(shift, (1, 2)), label


def network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(256, 10),
    )  # fmt: skip


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--images", type=int, default=6_000, help="training images")
    parser.add_argument("--tested", type=int, default=1_999, help="test images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("own.pt"), help="file for the checkpoint")
    return parser.parse_args()


def join():
    """Join the other ranks, and return this rank's own device: a GPU of its node, or the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":  # Apple's GPUs have no collectives
        dist.init_process_group("gloo")
        return torch.device("cpu")
    local_rank = dist.get_node_local_rank(fallback_rank=int(os.environ["RANK"]))
    device = torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group(device_id=device)
    return device


def main():
    args = parse_arguments()
    device = join()
    rank = dist.get_rank()
    size = dist.get_world_size()
    torch.set_num_threads(1)

    torch.manual_seed(args.seed)
    model = network().to(device)
    ddp = DistributedDataParallel(model)
    torch.manual_seed(1000 * args.seed + rank)  # from here on, each rank draws noise of its own
    loss_function = nn.CrossEntropyLoss()

    train = Shifted(args.data, "train", args.images)
    test = MNIST(args.data, "test", args.tested)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, BATCH // size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(Subset(test, range(rank, len(test), size)), 500)

    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, epochs=args.epochs, steps_per_epoch=len(loader))

    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        model.train()
        loss_sum = torch.zeros((), device=device)
        for images, labels in tqdm(loader, desc=f"epoch {epoch}", disable=None if rank == 0 else True):
            loss = loss_function(ddp(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            loss_sum += loss.detach()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / (size * len(loader))

        for buffer in model.buffers():  # the statistics of batch normalization: rank 0's on all ranks
            dist.broadcast(buffer, 0)
        model.eval()
        right = torch.zeros((), device=device)
        with torch.no_grad():
            for images, labels in test_loader:
                guesses = model(images.to(device)).argmax(1)
                right += (guesses == labels.to(device)).sum()
        dist.all_reduce(right)
        accuracy = right.item() / len(test)

        if rank == 0:
            print(f"epoch {epoch}: loss {mean_loss:.3f}, accuracy {accuracy:.2%}")
            torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
