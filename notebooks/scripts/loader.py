"""How long does training wait for its DataLoader? Start it with: python loader.py times.json [batches] [repeats]"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from mnist_data import cnn
from torch.utils.data import DataLoader, Dataset

BATCH = 64
# Forked workers start at once, with all that their parent has in memory. That is safe as long as no other thread of the
# parent is busy and no worker uses the GPU. Otherwise take "spawn", whose workers import everything anew.
START = "fork"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("times.json"))
    parser.add_argument("batches", type=int, nargs="?", default=12)
    parser.add_argument("repeats", type=int, nargs="?", default=3)
    return parser.parse_args()


class Images(Dataset):
    """Images, each of which takes `image_s` seconds to read: of work, or of waiting."""

    def __init__(self, kind, count, image_s):
        self.kind = kind
        self.count = count
        self.image_s = image_s
        self.image = torch.rand(1, 28, 28)

    def __len__(self):
        return self.count

    def __getitems__(self, indices):
        """Return a whole batch of images. A DataLoader calls this in place of __getitem__."""
        seconds = self.image_s * len(indices)
        if self.kind == "waiting":
            time.sleep(seconds)  # keeps no core busy, as a disk or a file server
        else:
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                self.image.sum()  # keeps a core busy, as unpacking a JPEG does
        return [self.image] * len(indices)


def train(model, images):
    """Return the seconds of a forward and a backward pass."""
    start = time.perf_counter()
    model(images).logsumexp(1).sum().backward()
    model[-1].bias.grad.sum().item()  # waits until a GPU has finished its work
    return time.perf_counter() - start


def epoch(model, loader, device):
    """Return the seconds until the first batch, of waiting for the others, and of computing."""
    first_s = waiting_s = computing_s = 0.0
    clock = time.perf_counter()
    for number, images in enumerate(loader):
        if number == 0:
            first_s = time.perf_counter() - clock
        else:
            waiting_s += time.perf_counter() - clock
        computing_s += train(model, images.to(device, non_blocking=True))  # from pinned memory, while the CPU goes on
        clock = time.perf_counter()
    return first_s, waiting_s, computing_s


def main():
    args = parse_arguments()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    torch.set_num_threads(1)
    if len(tempfile.gettempdir()) > 60:
        tempfile.tempdir = "/tmp"  # holds the workers' sockets, whose paths have room for about 100 characters
    model = cnn().to(device)
    trials = sorted(train(model, torch.rand(BATCH, 1, 28, 28, device=device)) for _ in range(9))
    image_s = trials[4] / BATCH  # the median: an image takes as long to read as to use

    times = {}
    for kind in ("waiting", "work"):
        for workers in (0, 1, 2):
            loader = DataLoader(
                Images(kind, args.batches * BATCH, image_s),
                batch_size=BATCH,
                num_workers=workers,
                multiprocessing_context=START if workers else None,
                pin_memory=device.type != "cpu",
                timeout=60 if workers else 0,  # if a worker can't send what it has read, that's an error, not a hang
            )
            times[f"{kind}, {workers} workers"] = [epoch(model, loader, device) for _ in range(args.repeats)]
    args.out.write_text(json.dumps(times))


if __name__ == "__main__":
    main()
