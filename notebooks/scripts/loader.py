"""How long does a training wait for its DataLoader? Start it with: python loader.py times.json [batches] [repeats]"""

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

out, batches, repeats = [*sys.argv[1:], *["times.json", 12, 3][len(sys.argv) - 1 :]]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)
if len(tempfile.gettempdir()) > 60:
    tempfile.tempdir = "/tmp"  # the workers' sockets are made there, and a socket's path has room for 100 characters
layers = nn.Conv2d(1, 8, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(8, 56, 5), nn.MaxPool2d(2), nn.ReLU()
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(896, 10)).to(device)


def train(images):
    """Seconds of a forward and a backward pass."""
    start = time.perf_counter()
    model(images).logsumexp(1).sum().backward()
    model[-1].bias.grad.sum().item()  # a GPU has done its work only now
    return time.perf_counter() - start


image_s = sorted(train(torch.rand(64, 1, 28, 28, device=device)) for _ in range(9))[4] / 64  # as long to read as to use


class Images(Dataset):
    def __init__(self, kind):
        self.kind, self.image = kind, torch.rand(1, 28, 28)

    def __len__(self):
        return 64 * int(batches)

    def __getitem__(self, index):
        end = time.thread_time() + image_s * (self.kind == "work")
        while time.thread_time() < end:
            self.image.sum()  # keeps a core busy, as unpacking a JPEG does
        time.sleep(image_s * (self.kind == "waiting"))  # keeps none, as a disk or a file server
        return self.image


def epoch(loader):
    """Seconds until the first batch, of waiting for the others, and of computing."""
    spent, clock = [0.0, 0.0, 0.0], time.perf_counter()
    for number, images in enumerate(loader):
        spent[number > 0] += time.perf_counter() - clock
        spent[2] += train(images.to(device, non_blocking=True))  # copies while the CPU goes on, from pinned memory
        clock = time.perf_counter()
    return spent


times = {}
for kind, workers, how in [(kind, *n) for kind in ("waiting", "work") for n in ((0, None), (1, "fork"), (2, "fork"))]:
    loader = DataLoader(
        Images(kind),
        batch_size=64,
        num_workers=workers,
        multiprocessing_context=how,
        pin_memory=device == "cuda",
        timeout=60 if workers else 0,  # if a worker can't send what it has read, that's an error, not a hang
    )
    times[f"{kind}, {workers} workers"] = [epoch(loader) for _ in range(int(repeats))]
Path(out).write_text(json.dumps(times))
