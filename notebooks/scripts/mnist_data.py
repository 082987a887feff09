"""What the scripts beside this file train on, and what they train: MNIST, and a small network for it.

To train on data of your own, write a Dataset like `MNIST` below and a network for it, and import them instead.
"""

import gzip
from argparse import ArgumentTypeError
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
# The workshop's copy of MNIST. Anywhere else, give a folder with --data.
MNIST_FOLDER = str(Path(__file__).resolve().parent / "../../assets/mnist")


def mnist_folder(text: str) -> Path:
    """Return the folder with this name, for argparse, which shows the error's sentence if MNIST isn't in it."""
    folder = Path(text)
    for name in (*FILES["train"], *FILES["test"]):
        if not (folder / name).exists():
            raise ArgumentTypeError(f"{name} isn't in {folder.resolve()}: give MNIST's folder with --data.")
    return folder


def read_idx(path: Path) -> np.ndarray:
    """Read a file in MNIST's format. Its header has the number of dimensions, and then the size of each."""
    content = gzip.decompress(path.read_bytes())
    dimensions = content[3]
    sizes = np.frombuffer(content, ">u4", count=dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(sizes)


class MNIST(Dataset):
    """MNIST's first `count` images, float32 [1, 28, 28] with mean 0 and standard deviation 1, and their digits."""

    def __init__(self, folder: Path, split: str, count: int | None = None):
        images, labels = (read_idx(folder / name) for name in FILES[split])
        if count is not None and not 1 <= count <= len(labels):
            raise ValueError(f"--images {count}: {folder.resolve()} has {len(labels)}. Give a number from 1 to that.")
        self.images = (torch.tensor(images[:count]).unsqueeze(1) - 33.3184) / 78.5675
        self.labels = torch.tensor(labels[:count]).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


def cnn() -> nn.Sequential:
    """Return a network of two convolutions and one linear layer, which sees 99 % of the digits after two epochs."""
    return nn.Sequential(
        nn.Conv2d(1, 8, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(8, 56, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(896, 10),
    )
